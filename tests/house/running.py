"""`manage.py up` as people start it: a real process with its own folder and port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil

from config.embedded import dies_with_parent
from tests.house.commands import ROOT, environment

START_S = 200


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def let_servers_in(folder: Path) -> None:
    """Open the way to a test's folder: where tests run as root, servers have another account."""
    for each in (folder, *folder.parents):
        if Path(tempfile.gettempdir()) in each.parents:
            each.chmod(0o755)


def as_from_a_terminal() -> Callable[[], None]:
    """A `preexec_fn`: the child ends with us, and a terminal that goes ends it too.

    Tests that were started under nohup ignore that signal, and whatever they start would inherit
    it and, as nohup asks, run on.
    """
    ends_with_us = dies_with_parent(signal.SIGTERM)

    def prepare() -> None:
        ends_with_us()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    return prepare


class Up:
    """One run, which may be stopped and started again on the same folder."""

    def __init__(self, *arguments: str, prefix: tuple[str, ...] = (), **env: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fencepost-up-"))
        # The servers' own account has to get in where tests run as root.
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.port = free_port()
        self.arguments = arguments
        self.prefix = prefix
        self.env = {"HOME": str(self.folder), **env}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def launch(self) -> subprocess.Popen[bytes]:
        command = [*self.prefix, sys.executable, str(ROOT / "manage.py"), "up"]
        options = ["--port", str(self.port), "--data-dir", str(self.data), *self.arguments]
        with (self.folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *options],
                env=environment(**self.env),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=as_from_a_terminal(),
            )
        return self.process

    def start(self) -> Up:
        process = self.launch()
        wait_until(
            lambda: "Running" in self.output or process.poll() is not None, "up says so", START_S
        )
        assert process.poll() is None, f"{self.output}{self.logs()}"
        return self

    def logs(self) -> str:
        files = sorted((self.data / "logs").glob("*.log")) if self.data.exists() else []
        return "".join(f"--- {file.name}\n{file.read_text()[-1500:]}" for file in files)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as got:
                return got.status, got.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def children(self) -> list[psutil.Process]:
        assert self.process is not None
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def child(self, name: str) -> int:
        """The process id of the child, 0 while it has none."""
        recorded = json.loads((self.data / "children.json").read_text())
        return next((int(entry["pid"]) for entry in recorded if entry["name"] == name), 0)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal to the one process people see, and wait for it alone."""
        assert self.process is not None
        self.process.send_signal(how)
        try:
            return self.process.wait(150)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {self.output}{self.logs()}") from None

    def left_over(self) -> list[str]:
        """Processes that still have to do with this run's folder."""
        return [
            " ".join(each.info["cmdline"] or [each.info["name"]])
            for each in psutil.process_iter(["name", "cmdline", "environ"])
            if each.pid != os.getpid()
            and str(self.data) in f"{each.info['cmdline']}{each.info['environ']}"
        ]

    def remove(self) -> None:
        try:
            if self.process is not None and self.process.poll() is None:
                self.end()
        finally:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
