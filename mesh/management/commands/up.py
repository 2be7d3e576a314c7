"""Run everything on this machine: `python manage.py up`."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from config.supervisor import Options, StartError, Supervisor


class Command(BaseCommand):
    help = (
        "Start the web server, the sweeps and, unless DATABASE_URL and CELERY_BROKER_URL name"
        " others, a database and a broker of its own. Ctrl-C stops all of it and keeps the data."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        processes = max(2, min(4, os.cpu_count() or 2))
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on")
        parser.add_argument("--data-dir", type=Path, default=settings.DATA_DIR)
        parser.add_argument("--no-demo", action="store_true", help="without demo data and agents")
        parser.add_argument("--web-processes", type=int, default=processes)
        parser.add_argument("--agents", type=int, default=3, help="number of demo agents")

    def handle(self, *args: Any, **options: Any) -> None:
        bounds = (("port", 1, 65_535), ("web_processes", 1, 64), ("agents", 0, 20))
        for name, least, most in bounds:
            if not least <= options[name] <= most:
                sys.exit(f"fencepost: --{name.replace('_', '-')} must be {least} to {most}")
        supervisor = Supervisor(
            Options(
                host=options["host"],
                port=options["port"],
                data_dir=options["data_dir"],
                demo=not options["no_demo"],
                web_processes=options["web_processes"],
                agents=options["agents"],
            ),
            say=self._say,
        )
        try:
            supervisor.run()
        except StartError as error:
            sys.exit(f"fencepost: {error}")

    def _say(self, text: str) -> None:
        # Whoever listened may have gone (a closed terminal); what runs does not depend on it.
        with contextlib.suppress(OSError):
            self.stdout.write(text)
            self.stdout.flush()
