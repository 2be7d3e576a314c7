"""What the demo needs to be let in, kept in the data folder for its owner alone."""

import contextlib
import io
import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from django.core.management import CommandError, call_command

from demo.crew import APPLICATION, CAPABILITIES, TENANT, names
from mesh.agent.state import private_folder, write_private

USER, TOKEN_NAME, REGISTRAR = "demo", "demo-stream", "service:registrar"
_OF_TENANT = ("--tenant", TENANT)
_DAY = 24 * 3600
GRANT_LIFE, GRANT_LEFT = 30 * _DAY, 7 * _DAY


def prepare(folder: Path, agents: int) -> dict[str, Any]:
    """Make what is missing; the password is told by the call that made it, later it is None."""
    private_folder(folder)
    _command("create_tenant", TENANT, "--application", APPLICATION)
    password = _make_user(folder / "user.json")
    token = folder / "token"
    if not token.exists():
        write_private(token, _make_token(), durable=True)
    grants = private_folder(folder / "grants")
    for name in names(agents):
        _keep_grant(grants, name)
    return {"tenant": TENANT, "application": APPLICATION, "username": USER, "password": password}


def _make_user(mark: Path) -> str | None:
    if mark.exists():
        return None
    password = secrets.token_urlsafe(12)
    # The command reads it from its input, so that it stands in no list of processes.
    with _stdin(password + "\n"):
        _command("create_user", USER, *_OF_TENANT, "--role", "admin", "--password-stdin")
    write_private(mark, json.dumps({"username": USER}), durable=True)
    return password


def _make_token() -> str:
    wanted = ("create_token", TOKEN_NAME, *_OF_TENANT, "--role", "operator")
    try:
        answer = _command(*wanted)
    except CommandError:
        # It is there, but the file with its secret is not.
        _command("revoke_token", TOKEN_NAME, *_OF_TENANT)
        answer = _command(*wanted)
    return str(answer["token"])


def _keep_grant(folder: Path, name: str) -> None:
    """A grant for exactly this name, made anew a week before it ends or for other rights."""
    file, facts = folder / f"{name}.jws", folder / f"{name}.json"
    rights = ["worker:register", *(f"worker:capability:{one}" for one in CAPABILITIES)]
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        stored = json.loads(facts.read_text())
        is_lasting = stored["ends_at"] > time.time() + GRANT_LEFT
        if file.exists() and is_lasting and stored["rights"] == rights:
            return
    answer = _command(
        "issue_grant",
        *(*_OF_TENANT, "--application", APPLICATION, "--subject", REGISTRAR),
        *(f"--capability={right}" for right in rights),
        *("--worker-name", name, "--expires-in", str(GRANT_LIFE)),
    )
    write_private(file, answer["grant"], durable=True)
    stored = {
        "grant_id": answer["grant_id"],
        "ends_at": time.time() + GRANT_LIFE,
        "rights": rights,
    }
    write_private(facts, json.dumps(stored), durable=True)


def _command(*words: str) -> dict[str, Any]:
    """Run one of our commands; CommandError when it refuses."""
    output = io.StringIO()
    call_command(*words, "--json", stdout=output)
    text = output.getvalue()
    answer: dict[str, Any] = json.loads(text) if text.strip() else {}
    return answer


@contextlib.contextmanager
def _stdin(text: str) -> Any:
    before, sys.stdin = sys.stdin, io.StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before
