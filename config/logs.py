"""Logs: one JSON object per line on stderr, with no secret in it."""

from __future__ import annotations

import re
from logging import DEBUG, INFO
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["DEBUG", "INFO", "configuration", "mask"]

# API tokens (fpt_), worker credentials (fpw_) and signed grants (a compact JWS: three parts in
# base64url, the first of which is a JSON object and so begins with eyJ).
SECRET = re.compile(
    r"(?P<prefix>fp[tw]_)[A-Za-z0-9_-]+"
    r"|eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
)


def mask(text: str) -> str:
    """The text with every secret of ours replaced."""
    return SECRET.sub(lambda found: f"{found['prefix'] or 'jws:'}***", text)


class MaskedJSON:
    """Renders last of all, so it sees what every logger, exception and field has to say."""

    def __init__(self) -> None:
        self._render = structlog.processors.JSONRenderer()

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        line = self._render(logger, name, event)
        return mask(line if isinstance(line, str) else line.decode())


SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
]


def configuration(level: str) -> dict[str, Any]:
    """What `logging.config.dictConfig` takes; also sends structlog's own loggers there."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": SHARED,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    MaskedJSON(),
                ],
            },
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django's own configuration gives these handlers that would not mask.
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            # Says again, without the request's context, what django-structlog says.
            "django.request": {"level": "CRITICAL"},
            # Several lines for every sign-in; a lock-out is a warning.
            "axes": {"level": "WARNING"},
            # A line for every message sent, taken and done; the sweeps say what they changed.
            "celery.beat": {"level": "WARNING"},
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
        },
    }
