"""Pools: who is in each, who counts and why others do not, how full it is; making and changing."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from django.contrib.admin import display as column
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest

from .. import candidates, pools, words
from ..models import Attempt, Pool, PoolMember, Role, Worker, Workload
from ..tenancy import Caller
from . import access, display, filters
from .acts import Act
from .base import Maker
from .display import age, badge, list_of, page_of
from .forms import ChangePoolForm, PoolForm
from .making import MakingAdmin
from .pages import Fact, Facts, Page, Table
from .paging import capped_count, capped_text
from .search import term_of

_MEMBERS: Final = 50
_ATTEMPTS: Final = 50
_PLACES: Final = 20


def _never(pool: Pool) -> str:
    return ""


def _content(data: dict[str, Any]) -> pools.Change:
    return {
        "name": data["name"],
        "capabilities": data["capabilities"],
        "required_labels": data["required_labels"],
        "worker_ids": data["worker_ids"],
        "max_concurrency": data["max_concurrency"],
    }


def _change(caller: Caller, pool: Pool, data: dict[str, Any]) -> object:
    return pools.change(
        caller=caller, pool_id=pool.pool_id, change=_content(data), reason=data["reason"]
    )


def _delete(caller: Caller, pool: Pool, data: dict[str, Any]) -> object:
    return pools.delete(caller=caller, pool_id=pool.pool_id, reason=data["reason"])


def _as_it_is(pool: Pool) -> dict[str, Any]:
    members = PoolMember.objects.filter(pool=pool).order_by("worker__worker_id")
    return {
        "name": pool.name,
        "capabilities": "\n".join(pool.capabilities),
        "required_labels": "\n".join(f"{k}={v}" for k, v in pool.required_labels.items()),
        "worker_ids": "\n".join(members.values_list("worker__worker_id", flat=True)),
        "max_concurrency": pool.max_concurrency,
    }


def _waiting(pool: Pool) -> QuerySet[Workload]:
    return Workload.objects.filter(
        claimable=True,
        requirement__application=pool.application_id,
        requirement__pool_id=pool.pool_id,
    )


def _effect(rows: Sequence[Pool]) -> str:
    waiting = sum(capped_count(_waiting(each)) for each in rows)
    return f"{capped_text(waiting)} claimable workloads name it and will wait until it is there."


CHANGE: Final = Act(
    "change",
    "Change",
    "edit",
    "Takes effect at the next claim. Claims that are live go on.",
    _change,
    _never,
    form=ChangePoolForm,
    initial=_as_it_is,
)
DELETE: Final = Act(
    "delete-pool",
    "Delete",
    "delete",
    "Claims that are live go on. Work that names the pool waits for one of its id.",
    _delete,
    _never,
    is_dangerous=True,
    effect=_effect,
)


class PoolAdmin(MakingAdmin):
    related = ("tenant", "application")
    public_id_field = "pool_id"
    acts = (CHANGE, DELETE)
    maker = Maker("make", "Make a pool", "add_circle")
    maker_form: ClassVar[Any] = PoolForm
    maker_intro = "Work names a pool in its policy; only workers that count in it may take it."
    about = "Named sets of workers, with tests and a limit of their own."
    empty_title = "No pool was made yet"
    empty_text = "Work needs none. Make one to keep work of a kind to some of the workers."
    list_display = ("show_name", "show_live", "show_members", "show_application", "show_tenant")
    list_filter = (filters.application(),)
    search_fields = ("pool_id", "name")
    search_help_text = "Id or name, from its beginning"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        rows: QuerySet[Pool] = super().get_queryset(request)
        return rows.annotate(member_count=Count("members"))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Pool], search_term: str
    ) -> tuple[QuerySet[Pool], bool]:
        term = term_of(search_term)
        by = Q(pool_id__startswith=term) | Q(name__startswith=term)
        return (queryset.filter(by) if term else queryset), False

    @column(description="Pool")
    def show_name(self, pool: Pool) -> str:
        return display.named(pool.name, pool.pool_id)

    @column(description="Limit")
    def show_live(self, pool: Pool) -> str:
        return "no limit" if pool.max_concurrency is None else str(pool.max_concurrency)

    @column(description="Members")
    def show_members(self, pool: Pool) -> str:
        count: int = pool.member_count  # type: ignore[attr-defined]  # annotated above
        told = words.count(count, "worker")
        return list_of(Worker, told, pool=pool.pk) if count else "none"

    @column(description="Application")
    def show_application(self, pool: Pool) -> str:
        return pool.application.name

    @column(description="Tenant")
    def show_tenant(self, pool: Pool) -> str:
        return pool.tenant.name

    def may_make(self, request: HttpRequest) -> bool:
        return access.can(request, Role.OPERATOR)

    def make(self, request: HttpRequest, data: dict[str, Any]) -> tuple[Pool, str]:
        """Make the pool in the application's tenant; it has no secret."""
        made = pools.create(
            caller=access.acting(request, data["application"].tenant),
            application=data["application"].name,
            pool_id=data["pool_id"],
            content=_content(data),
        )
        return made, ""

    def page(self, request: HttpRequest, row: Pool) -> Page:
        """One pool: how full it is, who counts, and what its work is doing."""
        live = candidates.live_in(row.application_id, [row.pool_id])[row.pool_id]
        is_full = row.max_concurrency is not None and live >= row.max_concurrency
        waiting = capped_text(capped_count(_waiting(row)))
        return Page(
            title=row.name,
            public_id=row.pool_id,
            badges=[badge("BUSY", "FULL")] if is_full else [],
            sentence=f"{live} live attempts of work that names it; {waiting} claimable wait.",
            main=[_members(row), _attempts(row)],
            side=[_about(row, live), _tests(row)],
        )


def places_of(worker: Worker) -> Facts:
    """The pools that a worker is in, for its page, and where it does not count."""
    found = list(Pool.objects.filter(members__worker=worker).order_by("pool_id")[: _PLACES + 1])
    rules = candidates.pools_of(worker, [each.pool_id for each in found])
    facts = [
        Fact(each.pool_id, page_of(each, each.name), _lacking(rules[each.pool_id].lacks(worker)))
        for each in found[:_PLACES]
    ]
    if len(found) > _PLACES:
        facts.append(Fact("More", f"The first {_PLACES}; there are more."))
    return Facts("Pools", facts or [Fact("In", "none")])


def _lacking(lacks: Sequence[str]) -> str:
    return f"does not count there: lacks {', '.join(lacks)}" if lacks else ""


def _members(row: Pool) -> Table:
    members = Worker.objects.filter(memberships__pool=row).order_by("name", "pk")
    found = list(members[: _MEMBERS + 1])
    shown = found[:_MEMBERS]
    rules = candidates.rules_of(row, [each.pk for each in shown])
    more = list_of(Worker, "All of its workers", pool=row.pk)
    return Table(
        "Members",
        ["Worker", "Counts", "Lifecycle", "Health", "Capacity"],
        [
            [
                page_of(each, display.named(each.name, each.worker_id)),
                _counts(rules.lacks(each)),
                badge(each.lifecycle),
                badge(each.health),
                display.bar(each.active, each.concurrency),
            ]
            for each in shown
        ],
        "Nobody is in it, so nobody takes work that names it.",
        note=more if len(found) > _MEMBERS else "",
    )


def _counts(lacks: Sequence[str]) -> object:
    return display.two_lines("no", f"lacks {', '.join(lacks)}") if lacks else "yes"


def _attempts(row: Pool) -> Table:
    live = (
        Attempt.objects.live()
        .filter(pool_id=row.pool_id, worker__application_id=row.application_id)
        .select_related("workload", "worker")
        .defer("workload__input")
        .order_by("claimed_at")
    )
    found = list(live[: _ATTEMPTS + 1])
    return Table(
        "Live attempts that count against it",
        ["Workload", "Worker", "Status", "Claimed"],
        [
            [
                page_of(
                    each.workload,
                    display.named(each.workload.definition_id, each.workload.workload_id),
                ),
                page_of(each.worker, each.worker.name),
                badge(each.status),
                age(each.claimed_at),
            ]
            for each in found[:_ATTEMPTS]
        ],
        "No work that names it is under way.",
        note=f"The {_ATTEMPTS} oldest; there are more." if len(found) > _ATTEMPTS else "",
    )


def _about(row: Pool, live: int) -> Facts:
    limit = row.max_concurrency
    return Facts(
        "About",
        [
            Fact(
                "Limit",
                "none" if limit is None else display.bar(live, limit),
                "live attempts of work that names the pool",
            ),
            Fact("Tenant", row.tenant.name),
            Fact("Application", row.application.name),
            Fact("Made", age(row.created_at)),
            Fact("Made by", row.created_by),
            Fact("Changed", age(row.updated_at)),
        ],
    )


def _tests(row: Pool) -> Facts:
    return Facts(
        "Who counts",
        [
            Fact("Capabilities", display.chips(row.capabilities, empty="any"), is_wide=True),
            Fact("Labels", display.pairs(row.required_labels, empty="any"), is_wide=True),
        ],
    )
