"""What workflows tells those who drive runs, once it is committed. Hints: rows are the truth."""

from typing import Final

from django.dispatch import Signal

# `pk`: a run in which something may have become possible.
run_changed: Final = Signal()
