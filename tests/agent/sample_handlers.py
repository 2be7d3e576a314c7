"""Handlers that the tests' agents run: each does one thing that matters."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from mesh.agent import Context, WorkFailure, handler


@handler("test.echo")
def echo(value: Any, context: Context) -> Any:
    return value


@handler("test.fail")
def fail(value: Any, context: Context) -> Any:
    raise WorkFailure(value["kind"], "as asked", {"why": "test"}, no_effect=True)


@handler("test.raise")
def raise_error(value: Any, context: Context) -> Any:
    raise ValueError(f"broken {value}")


@handler("test.raise.odd")
def raise_odd_error(value: Any, context: Context) -> Any:
    raise OSError("no such file: \udcff\0")


@handler("test.crash")
def crash(value: Any, context: Context) -> Any:
    if value == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    os._exit(3)


@handler("test.checkpoints")
def checkpoints(value: Any, context: Context) -> Any:
    """Counts on from the last checkpoint; waits for a file before the last step."""
    done = (context.previous_checkpoint or {"done": 0})["done"]
    steps = []
    while done < value["steps"]:
        done += 1
        steps.append(done)
        context.checkpoint({"done": done})
    wait_for(value.get("until"), context)
    return {"steps": steps, "attempt": context.attempt_number}


@handler("test.careless")
def careless(value: Any, context: Context) -> Any:
    """Puts into its checkpoint what does not belong there."""
    context.checkpoint({"token": value})


@handler("test.wait")
def wait_until(value: Any, context: Context) -> Any:
    """Ends when a file appears, or when asked to stop."""
    Path(value["started"]).write_text(str(os.getpid()))
    wait_for(value["until"], context)
    return "waited"


@handler("test.deaf")
def deaf(value: Any, context: Context) -> Any:
    """Starts a child of its own and hears nothing."""
    child = subprocess.Popen(["sleep", "600"])
    Path(value["started"]).write_text(f"{os.getpid()} {child.pid}")
    while True:
        time.sleep(1)


@handler("test.output")
def output(value: Any, context: Context) -> Any:
    if value == "not json":
        return {1, 2}
    if value == "nan":
        return float("nan")
    if value == "surrogate":
        return "\udcff"
    return {"password": "hunter2"}


@handler("test.environment")
def environment(value: Any, context: Context) -> Any:
    return sorted(os.environ)


def wait_for(path: str | None, context: Context) -> None:
    while path is not None and not Path(path).exists():
        context.stop_if_cancelled()
        time.sleep(0.02)
