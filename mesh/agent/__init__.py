"""The worker side of the mesh: everything `python -m mesh.agent` runs.

Stands alone: it speaks HTTP to the server and imports nothing of Django or of the rest of the
project, so that it can be shipped to a machine that holds neither.
"""

from mesh.agent.handlers import CheckpointRefused, Context, WorkCancelled, WorkFailure, handler

__all__ = ["CheckpointRefused", "Context", "WorkCancelled", "WorkFailure", "handler"]
