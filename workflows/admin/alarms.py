"""What the console's home page and its search tell of runs."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from django.db.models import Value

from mesh.admin.display import list_url, page_url
from mesh.admin.home import Alarm
from mesh.admin.paging import capped_text
from mesh.admin.search import EACH, Found

from ..models import Coordinator, Run
from . import reading

_MANY: Final = 1_000
_KINDS: Final = (
    (reading.ambiguous, "ambiguous"),
    (reading.never_started, "never started"),
    (reading.barred, "recovering"),
    (reading.left, "left"),
)


def alarms(mine: list[int]) -> list[Alarm]:
    """Runs that wait for a person, or may, of these tenants."""
    rows = Run.objects.filter(tenant_id__in=mine)
    # One statement for all kinds; each stops counting, as the others on the home page do.
    parts = [
        narrow(rows).order_by().annotate(kind=Value(word)).values_list("kind")[: _MANY + 1]
        for narrow, word in _KINDS
    ]
    counts = Counter(kind for (kind,) in parts[0].union(*parts[1:], all=True))
    if not counts:
        return []
    told = [f"{capped_text(counts[word], _MANY)} {word}" for _, word in _KINDS if counts[word]]
    text = "Say what ambiguous steps did, put right what never starts, adopt what is left."
    title = f"Runs need a person: {', '.join(told)}"
    return [Alarm("warn", "account_tree", title, text, list_url(Run, focus="person"))]


def find(mine: list[int], term: str) -> Iterator[Found]:
    """Runs and coordinators whose id begins with the term."""
    runs = Run.objects.filter(tenant_id__in=mine, run_id__startswith=term).order_by("run_id")
    for run in runs.only("run_id")[:EACH]:
        yield Found(run.run_id, "run", "account_tree", page_url(run))
    rows = Coordinator.objects.filter(tenant_id__in=mine, instance_id__startswith=term)
    for row in rows.order_by("instance_id")[:EACH]:
        yield Found(row.instance_id, "coordinator", "hub", page_url(row))
