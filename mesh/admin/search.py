"""Find a row by its id or name, whatever kind it is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q
from django.http import HttpRequest

from ..models import Attempt, Grant, Worker, Workload
from . import access
from .display import page_url

EACH: Final = 8
_MAX_TERM: Final = 255


@dataclass(frozen=True)
class Found:
    """A row, and where its page is."""

    title: str
    kind: str
    icon: str
    url: str


def term_of(text: str) -> str:
    """What a person typed or pasted, as it is looked for."""
    return text.replace("\0", "").strip()[:_MAX_TERM]


def uid_range(term: str) -> tuple[str, str] | None:
    """The lowest and highest uid that a `claim_…` or `attempt_…` prefix can mean."""
    noun, _, digits = term.partition("_")
    is_hex = len(digits) <= 32 and all(each in "0123456789abcdef" for each in digits)
    if noun not in {"claim", "attempt"} or not is_hex or len(digits) < 4:
        return None
    return digits.ljust(32, "0"), digits.ljust(32, "f")


# Finders of other kinds of rows, by who registered them: what begins with the term, or is it.
Finder = Callable[[list[int], str], Iterator[Found]]
_also: Final[list[Finder]] = []


def also(finder: Finder) -> None:
    """Have the search find these rows too; a repeat changes nothing."""
    if finder not in _also:
        _also.append(finder)


def find(request: HttpRequest, text: str) -> list[Found]:
    """At most a handful of rows of each kind that the id, name or key begins or is."""
    term = term_of(text)
    return list(_find(access.tenant_ids(request), term)) if term else []


def _find(mine: list[int], term: str) -> Iterator[Found]:
    workers = Worker.objects.filter(Q(worker_id__startswith=term) | Q(name__startswith=term))
    for worker in workers.filter(tenant_id__in=mine)[:EACH]:
        yield _found(worker, worker.name, "worker", "dns")
    work = Workload.objects.filter(workload_id__startswith=term, tenant_id__in=mine)
    by_key = Workload.objects.filter(application__tenant_id__in=mine, idempotency_key=term)
    for workload in [*_slim(work)[:EACH], *_slim(by_key)[:EACH]]:
        yield _found(workload, workload.workload_id, "workload", "deployed_code")
    span = uid_range(term)
    if span:
        attempts = Attempt.objects.filter(uid__range=span, worker__tenant_id__in=mine)
        for attempt in attempts[:EACH]:
            yield _found(attempt, attempt.attempt_id, "attempt", "replay")
    for grant in Grant.objects.filter(grant_id__startswith=term, tenant_id__in=mine)[:EACH]:
        yield _found(grant, grant.grant_id, "grant", "verified_user")
    for finder in _also:
        yield from finder(mine, term)


def _slim(work: Any) -> Any:
    return work.only("id", "workload_id").order_by("workload_id")


def _found(row: Any, title: str, kind: str, icon: str) -> Found:
    return Found(title, kind, icon, page_url(row))
