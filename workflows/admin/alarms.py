"""What the console's home page and its search tell of runs."""

from collections.abc import Iterator

from mesh.admin.display import list_url, page_url
from mesh.admin.home import Alarm
from mesh.admin.paging import capped_count, capped_text
from mesh.admin.search import EACH, Found

from ..models import Coordinator, Run
from . import reading

_MANY = 1_000
_KINDS = (
    (reading.ambiguous, "ambiguous"),
    (reading.never_started, "never started"),
    (reading.barred, "recovering"),
    (reading.left, "left"),
)


def alarms(mine: list[int]) -> list[Alarm]:
    """Runs that wait for a person, or may, of these tenants."""
    rows = Run.objects.filter(tenant_id__in=mine)
    counts = [(capped_count(narrow(rows), _MANY), word) for narrow, word in _KINDS]
    told = [f"{capped_text(count, _MANY)} {word}" for count, word in counts if count]
    if not told:
        return []
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
