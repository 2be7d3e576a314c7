"""The process that carries out the work of one slot, one job after the other.

It knows nothing of the server and holds no credential: jobs come over a socket from the agent,
and what it has to say goes back the same way. Single-threaded on purpose, because it prepares
commands between fork and exec.
"""

import argparse
import importlib
import json
import os
import resource
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from mesh.agent import commands
from mesh.agent.handlers import Context, WorkCancelled, WorkFailure, registered
from mesh.agent.processes import die_with_parent

_ERROR_LIMIT = 2000
_LOG_LIMIT = 128 * 1024
# Made once: `json.dumps` makes an encoder for each call that asks for anything of its own.
_encoded = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


class Channel:
    """The child's end of the socket: one job at a time, stop requests in between."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.fd = connection.fileno()
        self.job = 0
        self.stop: commands.Stop | None = None

    def receive(self) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return frame

    def next_job(self) -> dict[str, Any]:
        while True:
            frame = self.receive()
            if frame["type"] == "job":
                self.job = frame["job"]
                self.stop = None
                return frame

    def send(self, frame: dict[str, Any]) -> None:
        data = _encoded({**frame, "job": self.job})
        self._connection.send_bytes(data.encode())

    def stop_asked(self) -> commands.Stop | None:
        while self._connection.poll():
            self._note(self.receive())
        return self.stop

    def save(self, state: Any) -> dict[str, Any]:
        self.send({"type": "checkpoint", "state": state})
        while True:
            frame = self.receive()
            if frame["type"] == "checkpointed":
                return frame
            self._note(frame)

    def _note(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "stop" and frame["job"] == self.job:
            self.stop = commands.Stop(grace=frame["grace"])


def _text(text: str) -> str:
    """A text that can be sent: names of files may hold what is no Unicode."""
    return text.encode(errors="replace").decode().replace("\0", "�")


def _carry_out(job: dict[str, Any], channel: Channel, templates: dict[str, Any]) -> dict[str, Any]:
    template = templates.get(job["definition_id"])
    if template is not None:
        done = commands.run(
            template.fill(job["input"]),
            value=job["input"],
            workdir=job["workdir"],
            output_limit=job["output_limit"],
            control=channel.fd,
            on_started=lambda group: channel.send({"type": "command", "group": group}),
            stop_asked=channel.stop_asked,
        )
        return {"outcome": "complete", **done}
    context = Context(job, save=channel.save, is_cancelled=lambda: channel.stop_asked() is not None)
    output = registered()[job["definition_id"]](job["input"], context)
    logs = "\n".join(context.log_lines)[-_LOG_LIMIT:]
    return {"outcome": "complete", "output": output, "logs": logs}


def _outcome(job: dict[str, Any], channel: Channel, templates: dict[str, Any]) -> dict[str, Any]:
    try:
        return _carry_out(job, channel, templates)
    except WorkCancelled:
        return {"outcome": "cancelled"}
    except WorkFailure as failure:
        return {
            "outcome": "fail",
            "kind": failure.kind,
            "error": _text(failure.error)[:_ERROR_LIMIT],
            "details": failure.details,
            "no_effect": failure.no_effect,
        }
    except Exception as error:
        return {
            "outcome": "fail",
            "kind": "exception",
            "error": _text(f"{type(error).__name__}: {error}")[:_ERROR_LIMIT],
            "details": {"traceback": _text(traceback.format_exc(limit=-8))[-_ERROR_LIMIT:]},
            "no_effect": False,
        }


def _cpu_ms() -> int:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(one.ru_utime + one.ru_stime for one in used) * 1000)


def _serve(channel: Channel, templates: dict[str, Any]) -> None:
    while True:
        job = channel.next_job()
        before, began = _cpu_ms(), time.monotonic()
        outcome = {"type": "done", **_outcome(job, channel, templates)}
        outcome["took"] = time.monotonic() - began
        outcome["cpu_ms"] = _cpu_ms() - before
        try:
            channel.send(outcome)
        except (TypeError, ValueError) as error:
            problem = f"the handler's answer is not JSON: {error}"[:_ERROR_LIMIT]
            channel.send(
                {"type": "done", "outcome": "fail", "kind": "output_invalid", "error": problem}
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="mesh.agent.child")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--handlers", action="append", default=[])
    parser.add_argument("--command", action="append", default=[])
    options = parser.parse_args()
    die_with_parent(options.parent)
    os.set_inheritable(options.fd, False)
    channel = Channel(Connection(options.fd))
    try:
        for module in options.handlers:
            importlib.import_module(module)
        templates = {t.definition_id: t for t in map(commands.Template.parse, options.command)}
    except Exception as error:
        traceback.print_exc()
        channel.send({"type": "hello", "error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    channel.send({"type": "hello", "definitions": sorted(registered())})
    try:
        _serve(channel, templates)
    except (EOFError, ConnectionError):
        sys.exit(0)


if __name__ == "__main__":
    main()
