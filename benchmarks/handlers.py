"""What the agent runs in the benchmark: nothing."""

from typing import Any

from mesh.agent.handlers import Context, handler


@handler("bench.noop")
def noop(value: Any, context: Context) -> Any:
    """Give back the input."""
    return value
