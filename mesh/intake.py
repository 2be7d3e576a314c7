"""Intake: submitting work, one workload or many in one call.

Guarantees: a key stands for one workload for ever and equal content. Each workload of a call is
answered by itself, in order; those that are accepted come in together. Whatever their number it is
the same few statements: read what must be known (`submit_context.sql`), lock dependencies if there
are any, insert (`submit.sql`); a new kind of work costs some more.

Locks: the rows of its requirements, so that they stay in use; dependencies, shared, in the order
of their keys, so that no ending of theirs is missed; the application row when a new kind of work
appears. Rows are inserted sorted by key. Where a key was taken meanwhile, or a requirement is not
in use, the call is rolled back and begins anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from . import clock, grants, locking, requirements, statements
from .arrivals import Arrivals, Tie
from .errors import DomainError
from .locking import Shared
from .models import Grant, Role, Workload
from .requirements import Need
from .screening import require_no_secrets
from .submissions import Asked, Item, Submission, require_values
from .tenancy import Caller

MAX_AT_ONCE: Final = 1_000
_TRIES: Final = 4
_MINUTE: Final = timedelta(minutes=1)
_CONTEXT: Final = statements.load("submit_context")


@dataclass(frozen=True, slots=True)
class Submitted:
    workload: Workload
    created: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to one of many; `workload` is there where it is new."""

    workload_id: str
    created: bool
    workload: Workload | None = None


class _Again(Exception):  # noqa: N818  # never leaves this module
    """The call must begin anew: a key was taken, or these requirements are not in use."""

    def __init__(self, missing: Sequence[tuple[int, Need]] = ()) -> None:
        super().__init__()
        self.missing = missing


def submit(
    *,
    caller: Caller,
    submission: Submission,
    grant: str | None = None,
    is_of_run: bool = False,
) -> Submitted:
    """Take in one workload, READY when due. The same key with the same content is the same work.

    It is not claimable before its dependencies ended as required. Where one had already ended
    otherwise it is accepted all the same, and a dead letter at once (`dependency_failed`). To name
    a dependency twice is to name it once, but not with two required states. Keys that begin with
    `run:` belong to workflow runs, which say so with `is_of_run`.

    Needs the role operator, or a grant that names the caller. Refuses in this order:
    PERMISSION_DENIED; APPLICATION_NOT_FOUND; WORKLOAD_SECRET_REJECTED; WORKLOAD_INVALID;
    WORKLOAD_IDEMPOTENCY_MISMATCH; the grant's codes (`grants.verify_for_submit`);
    WORKLOAD_DEPENDENCY_INVALID (not in this application); LIMIT_EXCEEDED (too many kinds of work,
    or the tenant's submissions per minute). A repeat is answered whatever the limits say.
    """
    answer = _take_in(caller, [Asked(submission, grant, is_of_run)])[0]
    if isinstance(answer, DomainError):
        raise answer
    workload = answer.workload or Workload.objects.select_related("application").get(
        tenant_id=caller.tenant_id, workload_id=answer.workload_id
    )
    return Submitted(workload, answer.created)


def submit_many(*, caller: Caller, asked: Sequence[Asked]) -> list[Accepted | DomainError]:
    """Take in up to 1 000 workloads, each answered by itself in order, as `submit` would.

    A dependency may be an earlier one of the same call, not a later one. A key that comes again
    stands for the first one that was accepted. Refuses the call as a whole with REQUEST_INVALID
    (more than 1 000), PERMISSION_DENIED (a worker; no operator and no grant at all) and
    LIMIT_EXCEEDED (the tenant's submissions per minute, which one call may overshoot).
    """
    if len(asked) > MAX_AT_ONCE:
        raise DomainError("REQUEST_INVALID", f"At most {MAX_AT_ONCE} workloads a call.")
    if not any(each.grant for each in asked):
        caller.require(Role.OPERATOR)
    return _take_in(caller, asked)


def _take_in(caller: Caller, asked: Sequence[Asked]) -> list[Accepted | DomainError]:
    if caller.is_worker:
        raise DomainError("PERMISSION_DENIED", "A worker submits no work.")
    known: dict[str, tuple[Need, str]] = {}
    items = [Item.of(each, known) for each in asked]
    needs = {each.need_digest for each in items}
    missing: list[tuple[int, Need]] = []
    for _ in range(_TRIES):
        try:
            with transaction.atomic():
                refused = requirements.bring_into_use(missing, spare=needs) if missing else {}
                return _Call(caller, items, refused).run()
        except _Again as again:
            missing += again.missing
    raise locking.busy()


class _Call:
    """One try at a call, within its transaction."""

    def __init__(
        self,
        caller: Caller,
        items: Sequence[Item],
        refused: Mapping[tuple[int, str], DomainError],
    ) -> None:
        self.caller = caller
        self.items = items
        self.refused = refused
        self.known = _read(caller, items)
        self.at: datetime = self.known[0]["at"] if self.known else clock.now()
        self.shared = self._share()
        self.grants = grants.Known()
        self.missing: list[tuple[int, Need]] = []
        self.arrivals = Arrivals(caller, self.at)

    def run(self) -> list[Accepted | DomainError]:
        answers = [
            self._answer(item, known) for item, known in zip(self.items, self.known, strict=True)
        ]
        if self.missing:
            raise _Again(self.missing)
        if self.arrivals.by_key:
            self._require_within_limit()
            if not self.arrivals.insert():
                raise _Again
        return answers

    def _share(self) -> dict[tuple[int, str], Shared]:
        """Lock what new work waits for, as far as it exists, and read the time anew."""
        waiting = [
            (item, known["application_id"])
            for item, known in zip(self.items, self.known, strict=True)
            if item.submission.dependencies and known["application_id"] and not known["stored_id"]
        ]
        if not waiting:
            return {}
        names = {
            each["workload_id"] for item, _ in waiting for each in item.submission.dependencies
        }
        shared = locking.share_workloads(names, {application_pk for _, application_pk in waiting})
        self.at = clock.now()
        return {(each.application_pk, each.workload_id): each for each in shared}

    def _answer(self, item: Item, known: Mapping[str, Any]) -> Accepted | DomainError:
        try:
            return self._judge(item, known)
        except DomainError as refusal:
            return refusal

    def _judge(self, item: Item, known: Mapping[str, Any]) -> Accepted:
        """The checks in the contract's order; new work is made here, in memory."""
        submission, application_pk = item.submission, known["application_id"]
        if item.grant is None:
            self.caller.require(Role.OPERATOR)
        if application_pk is None:
            raise DomainError("APPLICATION_NOT_FOUND", "There is no such application.")
        require_no_secrets(input=submission.input)
        require_values(item, self.at)
        key = (application_pk, submission.idempotency_key)
        if known["stored_id"] is not None:
            return _repeat(item, known["stored_as"], known["stored_digest"])
        if (earlier := self.arrivals.by_key.get(key)) is not None:
            return _repeat(item, earlier.workload_id, earlier.content_digest)
        proof = self._proof(item)
        ties = self._ties(item, application_pk)
        if known["requirement_id"] is None:
            if (refusal := self.refused.get((application_pk, item.need_digest))) is not None:
                raise refusal
            self.missing.append((application_pk, item.need))
        workload = self.arrivals.make(item, application_pk, known["requirement_id"], proof, ties)
        return Accepted(workload.workload_id, created=True, workload=workload)

    def _proof(self, item: Item) -> Grant | None:
        if item.grant is None:
            return None
        submission = item.submission
        return grants.verify_for_submit(
            item.grant,
            self.caller,
            submission.application,
            self.at,
            submission.facts(self.caller.tenant),
            self.grants,
        )

    def _ties(self, item: Item, application_pk: int) -> list[Tie]:
        """What the work waits for: there already, or made by this call before it."""
        ties: dict[str, Tie] = {}
        for each in item.content.get("dependencies", ()):
            workload_id, required = each["workload_id"], each["required_state"]
            named = (application_pk, workload_id)
            there = self.shared.get(named) or self.arrivals.by_id.get(named)
            if there is None or workload_id in ties:
                told = "is named twice" if there else "is not among the work of the application"
                raise DomainError(
                    "WORKLOAD_DEPENDENCY_INVALID",
                    f"The dependency {workload_id[:64]} {told}.",
                    dependency=workload_id[:64],
                )
            ties[workload_id] = Tie(workload_id, there.pk, required, there.state)
        return list(ties.values())

    def _require_within_limit(self) -> None:
        """Refuse with LIMIT_EXCEEDED while as many as the tenant may submit came in a minute.

        The newest work is looked at, so there is no counter that all would wait for; never more
        than came in that minute.
        """
        limit = self.known[0]["per_minute"]
        if limit is None:
            return
        newest = Workload.objects.filter(
            tenant_id=self.caller.tenant_id, created_at__gt=self.at - _MINUTE
        )
        times = newest.order_by("-created_at", "-id").values_list("created_at", flat=True)
        nth = times[limit - 1 : limit].first()
        if nth is not None:
            raise DomainError(
                "LIMIT_EXCEEDED",
                f"The tenant may submit {limit} workloads a minute.",
                retry_after_ms=max(1, round((nth + _MINUTE - self.at).total_seconds() * 1_000)),
            )


def _read(caller: Caller, items: Sequence[Item]) -> list[dict[str, Any]]:
    """`submit_context.sql`: what is known of each."""
    values = {
        "fixed": clock.fixed(),
        "tenant": caller.tenant_id,
        "applications": [each.submission.application for each in items],
        "keys": [each.submission.idempotency_key for each in items],
        "needs": [each.need_digest for each in items],
    }
    return statements.rows(_CONTEXT, values)


def _repeat(item: Item, workload_id: str, content_digest: str) -> Accepted:
    if content_digest != item.digest:
        raise DomainError(
            "WORKLOAD_IDEMPOTENCY_MISMATCH",
            "This idempotency key stands for other content.",
            workload_id=workload_id,
        )
    return Accepted(workload_id, created=False)
