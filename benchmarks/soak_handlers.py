"""What the agents of the soak run do: leave a mark of every start, take a while, end somehow."""

from __future__ import annotations

import os
import time
from typing import Any

from mesh.agent import Context, WorkFailure, handler


@handler("soak.requeue")
@handler("soak.hold")
def work(value: Any, context: Context) -> Any:
    """Write `workload attempt` to the file of effects, then go on in steps."""
    mark = f"{context.workload_id} {context.attempt_number} {context.definition_id}\n".encode()
    effects = os.open(value["effects"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(effects, mark)
    finally:
        os.close(effects)
    for step in range(value["steps"]):
        time.sleep(value["pause_s"])
        context.stop_if_cancelled()
        if step % 3 == 2:
            context.checkpoint({"step": step})
    if value["fails"]:
        raise WorkFailure("transient_connection", "as asked", no_effect=True)
    return {"attempt": context.attempt_number}
