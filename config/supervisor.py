"""What `manage.py up` runs: servers, web, sweeps, beat and the demo, started and stopped in order.

Everything is a child of one process that only watches. A child that dies is started again, later
each time. Nothing outlives the watcher: on Linux the kernel ends the children even when it is
killed with -9, elsewhere the next start does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import stat
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from django.conf import settings
from django.core.management import get_commands
from django.db import Error, connection

from config.databases import explain
from config.embedded import EmbeddedBroker, EmbeddedError, EmbeddedPostgres, EmbeddedServer
from config.keys import grant_key_problem, make_development_keys
from config.processes import Child, Family, command
from config.runfile import RunFile

READY_TIMEOUT_S = 180
OLDEST_POSTGRES = 15
# Of Celery, commands, the demo and people; each thread of the web server has one besides.
OTHER_SESSIONS = 60


class StartError(Exception):
    """One line: why it does not start, and what to do."""


class Stop(BaseException):
    """Somebody asked us to end."""


@dataclass(frozen=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 8000
    data_dir: Path = Path(".data")
    demo: bool = True
    web_processes: int = 2
    agents: int = 3

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what was asked for
        host = everywhere.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


class Supervisor:
    def __init__(self, options: Options, say: Callable[[str], object]) -> None:
        self.options = options
        self.say = say
        self.data = options.data_dir.absolute()
        self.family = Family(
            self.data / "logs", self.data / "children.json", while_waiting=self._heed_signals
        )
        self.run_file = RunFile(self.data)
        self.is_demo = options.demo and not settings.PRODUCTION and "demo" in get_commands()
        self._servers: list[EmbeddedServer] = []
        self._metrics: Path | None = None
        self._lock: IO[str] | None = None
        self._signals = 0
        self._is_stopping = False

    def run(self) -> None:
        """Start everything, watch over it until a signal asks to end, stop everything.

        Raises StartError with one line for people if it cannot start.
        """
        self._catch_signals()
        try:
            self._start()
            self._watch()
        except Stop:
            self.say("Stopping …")
        except EmbeddedError as error:
            raise StartError(str(error)) from error
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            raise StartError(f"{error.strerror or error}{where}") from error
        finally:
            self._stop()

    # --- Start -----------------------------------------------------------------------------------

    def _start(self) -> None:
        self._take_data_dir()
        self.family.clear_leftovers()
        self._require_free_port()
        if settings.PRODUCTION:
            self._require_grant_key()
            self._require_database()
        else:
            make_development_keys(self.data)
        self._start_servers()
        self._prepare()
        self._start_services()
        self._wait_until_ready()
        self._announce(self._prepare_demo())

    def _take_data_dir(self) -> None:
        try:
            self.data.mkdir(mode=0o755, parents=True, exist_ok=True)
            (self.data / "logs").mkdir(mode=0o700, exist_ok=True)
            lock = (self.data / "lock").open("w")
        except OSError as error:
            raise StartError(
                f"cannot write in {self.data} ({error.strerror}): choose another --data-dir"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StartError(
                f"{self.data} is in use by another run: stop that one, or choose another --data-dir"
            ) from None
        self._lock = lock
        if os.geteuid() == 0:
            # The servers run under another account, which must pass here (not list what is inside).
            self.data.chmod(self.data.stat().st_mode & 0o777 | 0o011)

    def _require_free_port(self) -> None:
        host, port = self.options.host, self.options.port
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(found[0], found[1]) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(found[4])
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise StartError(
                f"cannot listen on {host} port {port} ({reason}): choose another --port or --host"
            ) from error

    def _require_grant_key(self) -> None:
        if problem := grant_key_problem(settings.GRANT_KEY_FILE):
            raise StartError(f"FENCEPOST_GRANT_KEY_FILE: {settings.GRANT_KEY_FILE}: {problem}")

    def _require_database(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("select current_setting('server_version_num')::int")
                (version,) = cursor.fetchone()
        except Error as error:
            raise StartError(explain(error) or str(error).splitlines()[0]) from error
        finally:
            connection.close()
        if version < OLDEST_POSTGRES * 10_000:
            raise StartError(
                f"PostgreSQL {OLDEST_POSTGRES} or newer is needed, DATABASE_URL names a"
                f" {version // 10_000}"
            )

    def _start_servers(self) -> None:
        facts = {"pid": str(os.getpid()), "url": self.options.url}
        if not settings.PRODUCTION:
            # One more for each process: it looks out for those who wait.
            each = settings.WEB_CONNECTIONS + 1
            sessions = OTHER_SESSIONS + each * self.options.web_processes
            postgres = EmbeddedPostgres(self.data / "postgres", max_connections=str(sessions))
            facts["database_url"] = self._start_server("postgres", postgres)
        if settings.GIVEN_BROKER_URL:
            require_broker(settings.GIVEN_BROKER_URL)
        else:
            broker = EmbeddedBroker(self.data / "broker")
            facts["broker_url"] = self._start_server("broker", broker)
        self.run_file.write(**facts)

    def _start_server(self, name: str, server: EmbeddedServer) -> str:
        server.prepare()
        self._servers.append(server)
        child = self.family.add(name, server.launch, stop_signal=server.death_signal, patience_s=60)
        try:
            server.wait_until_ready(while_waiting=self._heed_signals)
        except EmbeddedError:
            if child.is_running:
                raise
            self._fail(child)
        return server.url

    def _prepare(self) -> None:
        """Tables and static files, side by side: neither needs the other."""
        steps = [
            self._add("migrate", manage("migrate", "--no-input")),
            self._add("collectstatic", manage("collectstatic", "--no-input", "--verbosity=0")),
        ]
        for step in steps:
            self.family.wait(step, timeout_s=3600)
            if step.process is None or step.process.returncode != 0:
                self._fail(step)
            self.family.stop(step)

    def _start_services(self) -> None:
        processes = self.options.web_processes
        self._metrics = make_metrics_folder(self.data)
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        self._add("worker", celery("worker", *WORKER, "-Q", "celery", "-c", "2", "-n", "worker@%h"))
        self._add("sweeps", celery("worker", *WORKER, "-Q", "sweeps", "-c", "4", "-n", "sweeps@%h"))
        self._add("coordinator", celery("worker", *COORDINATOR))
        schedule = str(self.data / "beat-schedule")
        self._add("beat", celery("beat", "--pidfile=", "-s", schedule))
        listen = ["--bind", f"{host}:{self.options.port}", "--workers", str(processes)]
        server = [sys.executable, "-m", "gunicorn", "config.wsgi", "-c", "python:config.gunicorn"]
        self._add(
            "web",
            [*server, "--no-control-socket", *listen],
            patience_s=15,
            PROMETHEUS_MULTIPROC_DIR=str(self._metrics),
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        url = f"{self.options.url}/readyz"
        request = urllib.request.Request(url, headers={"Host": allowed_host()})  # noqa: S310
        answer = "no answer"
        while time.monotonic() < deadline:
            self.family.pump(0.1)
            for child in self.family.children:
                if not child.is_running:
                    self._fail(child)
            try:
                with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - our own address
                    return
            except urllib.error.HTTPError as error:
                answer = unready_parts(error.read())
            except OSError:
                continue
        raise StartError(
            f"not ready after {READY_TIMEOUT_S} s ({answer}): see {self.data / 'logs'}"
        )

    def _prepare_demo(self) -> dict[str, Any]:
        """The demo's tenant and user; the password is only told when it was just made."""
        if not self.is_demo:
            return {}
        # By a file, so that a password never stands in a log.
        agents = str(self.options.agents)
        answer = self.data / f"demo-{secrets.token_hex(8)}.json"
        try:
            with open(os.open(answer, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
                prepare = manage("demo", "--prepare", "--json", "--agents", agents)
                step = self._add("demo-prepare", prepare, stdout=out)
                self.family.wait(step, timeout_s=120)
            if step.process is None or step.process.returncode != 0:
                self._fail(step)
            self.family.stop(step)
            facts: dict[str, Any] = json.loads(answer.read_text())
        except ValueError as error:
            raise StartError(f"the demo did not say who may sign in: {error}") from error
        finally:
            answer.unlink(missing_ok=True)
        demo = manage("demo", "--url", self.options.url, "--agents", agents)
        self._add("demo", demo, patience_s=20)
        return facts

    def _add(
        self,
        name: str,
        argv: list[str],
        *,
        patience_s: float = 20,
        stdout: IO[bytes] | None = None,
        **env: str,
    ) -> Child:
        surroundings = {**os.environ, "FENCEPOST_DATA_DIR": str(self.data), **env}
        launch = command(argv, cwd=settings.BASE_DIR, env=surroundings, stdout=stdout)
        return self.family.add(name, launch, patience_s=patience_s)

    def _fail(self, child: Child) -> NoReturn:
        # What failed first: without its server, everything else fails too.
        self.family.pump(0.2)
        child = next((each for each in self.family.children if not each.is_running), child)
        last = child.log.last_line().removeprefix("fencepost: ")
        raise StartError(f"{child.name} failed: {last} (see {child.log.path})")

    def _announce(self, demo: dict[str, Any]) -> None:
        url = self.options.url
        lines = [("Running", f"{url}/")]
        if demo:
            password = demo.get("password") or "(the password was shown at the first start)"
            lines += [("Sign in", f"{demo.get('username')} / {password}")]
        lines += [
            ("Console", f"{url}/admin/"),
            ("API", f"{url}/api/v1/docs"),
            ("Logs", str(self.data / "logs")),
            *self._command_hint(),
            ("Stop", "Ctrl-C; data is kept"),
        ]
        self.say(
            "\nFencepost\n" + "\n".join(f"  {name:9}{text}".rstrip() for name, text in lines) + "\n"
        )

    def _command_hint(self) -> list[tuple[str, str]]:
        """Other commands look for the usual folder unless they are told."""
        if settings.PRODUCTION or self.data == settings.DATA_DIR:
            return []
        where = f"FENCEPOST_DATA_DIR={shlex.quote(str(self.data))}"
        return [("Commands", f"{where} .venv/bin/python manage.py …")]

    # --- Watch -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            self.family.pump(0.5)
            for child in self.family.children:
                self._tend(child)

    def _tend(self, child: Child) -> None:
        if child.is_running:
            return
        now = time.monotonic()
        if child.restart_at is None:
            delay = child.next_delay()
            child.restart_at = now + delay
            code = child.process.returncode if child.process else None
            self.say(
                f"{child.name} ended (exit code {code}); starting it again in {delay:g} s,"
                f" see {child.log.path}"
            )
        elif now >= child.restart_at:
            try:
                self.family.start(child)
            except OSError as error:
                child.restart_at = now + child.next_delay()
                self.say(f"{child.name} cannot be started: {error}")

    # --- Stop ------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._is_stopping = True
        asked = self._signals  # once more means: at once
        for child in reversed(list(self.family.children)):
            self.family.stop(child, in_a_hurry=lambda: self._signals > asked)
        for server in reversed(self._servers):
            server.stop()
        if self._metrics is not None:
            shutil.rmtree(self._metrics, ignore_errors=True)
        if self._lock is not None:
            self.run_file.remove()
            self._lock.close()

    def _catch_signals(self) -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if each == signal.SIGHUP and signal.getsignal(each) == signal.SIG_IGN:
                continue  # nohup
            signal.signal(each, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Only counts: an exception raised here may strike where nobody passes it on (a fork)."""
        self._signals += 1

    def _heed_signals(self) -> None:
        """Called wherever we wait."""
        if self._signals and not self._is_stopping:
            raise Stop


def make_metrics_folder(data: Path, memory: Path = Path("/dev/shm")) -> Path:  # noqa: S108
    """An empty folder for what web processes count, in memory where the system has such a place.

    They map their files, and on a full disk the first write to a mapped page kills the process:
    every request would end without an answer. The name is the data folder's, so that a run that
    was killed leaves nothing that the next one does not find.
    """
    name = sha256(str(data).encode()).hexdigest()[:16]
    for folder in (memory / f"fencepost-{os.geteuid()}-{name}", data / "metrics"):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            # Others may write in such places too: a link or another's folder is not ours.
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                for file in folder.glob("*.db"):
                    file.unlink()
                return folder
    raise StartError(f"cannot write in {data / 'metrics'}: choose another --data-dir")


# Threads, because sweeps wait for the database: one process, and nothing left when it is killed.
WORKER = ("-P", "threads", "--without-gossip", "--without-mingle")
# An instance of the built-in coordinator of runs; there may be several.
COORDINATOR = (*WORKER, "-Q", "runs", "-c", "4", "-n", "coordinator@%h")


def manage(*arguments: str) -> list[str]:
    return [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]


def celery(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--quiet", "-A", "config.celery", *arguments]


def allowed_host() -> str:
    """A host name that our own web server accepts."""
    first = next(iter(settings.ALLOWED_HOSTS), "localhost")
    return "localhost" if first == "*" else str(first).lstrip(".")


def require_broker(url: str) -> None:
    from kombu import Connection
    from kombu.exceptions import OperationalError

    try:
        with contextlib.closing(Connection(url, connect_timeout=5)) as broker:
            broker.ensure_connection(max_retries=1, interval_start=0, timeout=5)
    except (OperationalError, OSError, ValueError, KeyError) as error:
        name = Connection(url).as_uri() if "://" in url else url
        raise StartError(
            f"the broker at {name} (CELERY_BROKER_URL) does not answer: {error}"
        ) from error


def unready_parts(body: bytes) -> str:
    try:
        parts = json.loads(body)
    except ValueError:
        return "an error instead of an answer"
    return ", ".join(
        f"{name}: {part.get('detail')}"
        for name, part in parts.items()
        if isinstance(part, dict) and not part.get("ok")
    )
