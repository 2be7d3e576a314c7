"""One line per event, for people or as JSON, with anything that looks like a secret masked."""

import json
import logging
import re
import sys
from datetime import UTC, datetime

from rich.console import Console
from rich.logging import RichHandler

_SECRET = re.compile(r"fp[tw]_[A-Za-z0-9_-]+|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


def masked(text: str) -> str:
    return _SECRET.sub("***", text)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return masked(json.dumps(line, ensure_ascii=False))


def configure(*, as_json: bool, quiet: bool, name: str) -> None:
    """Send the agent's log to stderr."""
    handler: logging.Handler
    if as_json:
        handler = logging.StreamHandler()
        handler.setFormatter(_Json())
    elif sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False, markup=False)
        handler.setFormatter(_Plain(f"{name}  %(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(_Plain(f"%(asctime)s {name} %(levelname)s %(message)s"))
    logger = logging.getLogger("mesh.agent")
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
