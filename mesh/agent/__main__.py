"""`python -m mesh.agent`: the command line of the worker agent."""

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from mesh.agent import logs
from mesh.agent.commands import Template, TemplateError
from mesh.agent.loop import Agent, Exit
from mesh.agent.options import AgentOptions
from mesh.agent.signals import Signals
from mesh.agent.state import State, StateForeignError, StateInUseError


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for key, separator, _value in pairs:
        if not key or not separator:
            raise typer.BadParameter("expected KEY=VALUE", param_hint=option)
    return {key: value for key, _separator, value in pairs}


def _resources(texts: list[str]) -> dict[str, int]:
    try:
        return {key: int(value) for key, value in _pairs(texts, "--resource").items()}
    except ValueError:
        raise typer.BadParameter("expected NAME=NUMBER", param_hint="--resource") from None


def _state_dir(tenant: str, application: str, name: str) -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    digest = sha256("\0".join((tenant, application, name)).encode()).hexdigest()[:16]
    return home / "fencepost" / f"agent-{digest}"


def _grant() -> tuple[str | None, Path | None]:
    """What the environment says of the grant; taken out of it, for it is nobody else's business."""
    grant = os.environ.pop("FENCEPOST_GRANT", None)
    file = os.environ.pop("FENCEPOST_GRANT_FILE", None)
    return grant, Path(file) if file else None


def main(
    url: Annotated[str, typer.Option(help="Address of the server, without /api/v1.")],
    tenant: Annotated[str, typer.Option()],
    application: Annotated[str, typer.Option()],
    name: Annotated[str, typer.Option(help="Name of the worker; one process at a time.")],
    runtime: Annotated[str, typer.Option(help="Runtime kind that is declared.")] = "process",
    version: Annotated[str, typer.Option(help="Version of the worker.")] = "1.0.0",
    capability: Annotated[list[str] | None, typer.Option(help="Declared; repeat.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; repeat.")] = None,
    resource: Annotated[list[str] | None, typer.Option(help="cpu_millis=N …; repeat.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Definition to take; repeat. Default: all it has a handler for."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1000)] = 4,
    state_dir: Annotated[Path | None, typer.Option(help="Folder for credential and spool.")] = None,
    grant_file: Annotated[
        Path | None,
        typer.Option(help="File with the grant. Else FENCEPOST_GRANT or FENCEPOST_GRANT_FILE."),
    ] = None,
    registered_by: Annotated[str, typer.Option(help="Subject of the grant.")] = "service:registrar",
    handlers: Annotated[list[str] | None, typer.Option(help="Module of handlers; repeat.")] = None,
    command: Annotated[
        list[str] | None, typer.Option(help='"definition=program {input.path}"; repeat.')
    ] = None,
    lease_ms: Annotated[int | None, typer.Option(min=1000, max=900_000)] = None,
    heartbeat_interval_ms: Annotated[int, typer.Option(min=1000, max=300_000)] = 10_000,
    heartbeat_timeout_ms: Annotated[int | None, typer.Option(min=3000, max=900_000)] = None,
    abandon_claims: Annotated[
        bool, typer.Option(help="End claims of an earlier process as lost.")
    ] = False,
    output_limit: Annotated[int, typer.Option(help="Bytes of a command's stdout.")] = 512 * 1024,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for any piece of work; the stricter limit wins.")
    ] = None,
    stop_grace: Annotated[float, typer.Option(help="Seconds between TERM and KILL.")] = 5.0,
    drain_grace: Annotated[
        float, typer.Option(help="Seconds that running work gets when the agent is stopped.")
    ] = 30.0,
    json_logs: Annotated[bool, typer.Option(help="Log as JSON lines.")] = False,
    quiet: Annotated[bool, typer.Option(help="Log only what went wrong.")] = False,
) -> None:
    """Run one worker until it is told to stop."""
    for text in command or []:
        try:
            Template.parse(text)
        except TemplateError as error:
            raise typer.BadParameter(str(error), param_hint="--command") from None
    grant, file_from_environment = _grant()
    options = AgentOptions(
        url=url,
        tenant=tenant,
        application=application,
        name=name,
        state_dir=state_dir or _state_dir(tenant, application, name),
        runtime=runtime,
        version=version,
        capabilities=tuple(capability or ()),
        kinds=tuple(kind or ()),
        labels=_pairs(label or [], "--label"),
        resources=_resources(resource or []),
        concurrency=concurrency,
        registered_by=registered_by,
        grant=grant,
        grant_file=grant_file or file_from_environment,
        handlers=tuple(handlers or ()),
        commands=tuple(command or ()),
        lease_ms=lease_ms,
        heartbeat_interval_ms=heartbeat_interval_ms,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
        abandon_claims=abandon_claims,
        output_limit=output_limit,
        time_limit=time_limit,
        stop_grace=stop_grace,
        drain_grace=drain_grace,
    )
    logs.configure(as_json=json_logs, quiet=quiet, name=name)
    raise typer.Exit(int(_run(options)))


def _run(options: AgentOptions) -> Exit:
    signals = Signals()
    try:
        state = State(options.state_dir, options.identity)
    except StateInUseError as error:
        typer.echo(f"another agent runs with the state folder {error}", err=True)
        return Exit.STATE_IN_USE
    except StateForeignError as error:
        typer.echo(f"the state folder {error} belongs to another worker", err=True)
        return Exit.USAGE
    return Agent(options, state).run(signals)


if __name__ == "__main__":
    sys.tracebacklimit = 20
    typer.run(main)
