"""Run agents and a stream of work to look at."""

from __future__ import annotations

import json
import logging
import os
import random
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo import crew, flow, keys, stream
from demo.handlers import FOLDERS_VARIABLE
from mesh.agent.client import ApiClient
from mesh.agent.signals import Signals

MAX_AGENTS = 20


def number_of_agents(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_AGENTS:
        raise ArgumentTypeError(f"a number up to {MAX_AGENTS}")
    return int(text)


class Command(BaseCommand):
    help = "Make demo data (--prepare), or run demo agents and a stream of work (--url)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--prepare", action="store_true", help="make tenant, login and keys")
        what.add_argument("--url", help="address of the server to run against")
        parser.add_argument("--agents", type=number_of_agents, default=3)
        parser.add_argument(
            "--kill-every",
            type=float,
            default=120.0,
            metavar="SECONDS",
            help="how often one agent is killed, so that recovery is seen; 0: never",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.PRODUCTION:
            raise CommandError("demo data is only made on the embedded database")
        folder = Path(settings.DATA_DIR) / "demo"
        facts = keys.prepare(folder, options["agents"])
        if options["json"]:
            self.stdout.write(json.dumps(facts))
        elif options["prepare"] or facts["password"]:
            password = facts["password"] or "(shown when it was made)"
            self.stdout.write(f"Sign in as {facts['username']} / {password}")
        if options["url"]:
            _run(folder, options["url"], options["agents"], options["kill_every"])


def _run(folder: Path, url: str, agents: int, kill_every: float) -> None:
    """Until SIGTERM or SIGINT."""
    logging.basicConfig(format="%(asctime)s demo %(message)s", level=logging.WARNING)
    logging.getLogger("demo").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    inbox = folder.parent / "inbox"
    inbox.mkdir(exist_ok=True)
    folders = {"project": Path(settings.BASE_DIR), "inbox": inbox.absolute()}
    environment = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ
    }
    known = {**folders, "shelf": folder.absolute() / "shelf"}
    environment[FOLDERS_VARIABLE] = json.dumps({name: str(path) for name, path in known.items()})
    signals = Signals()
    client = ApiClient(url, token=(folder / "token").read_text())
    work = stream.Stream(client, folders)
    team = crew.Crew(
        url, folder, environment, number=agents, kill_every=kill_every, busy=work.busy_workers
    )
    runs = flow.Flow(client, work.pick, team.lose)
    try:
        while not signals.wait(random.uniform(0.5, 1.2)):  # noqa: S311  a demo
            team.tend()
            work.step()
            runs.step()
    finally:
        team.stop()
