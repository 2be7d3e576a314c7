"""Groups of processes that are killed whole, and children that end with their parent."""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Looked up at import: nothing may be loaded between fork and exec.
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal to this process when the thread that made it ends (Linux only).

    The parent may be gone before the request is made, so that is looked at afterwards.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def kill_group(group: int, number: int) -> None:
    """Send a signal to a whole process group; one that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
