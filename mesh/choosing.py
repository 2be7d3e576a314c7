"""The careful pull: work is chosen one by one where more than slots must be counted.

Used for a worker that may take work which names a pool or resources, and while a pause stands.
Guarantees: no claim goes beyond what is left of the worker's resources or of a pool's limit; what
does not fit hides nothing behind it. The number of statements has a fixed bound, whatever N is.

Locks: the worker (by the caller), its eligible set, the pools that have a limit and work to give,
then the workloads with skip-locked.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from django.db.models import Exists, OuterRef

from . import (
    candidates,
    clock,
    giving,
    locking,
    pauses,
    placement,
    requirements,
    statements,
    workers,
)
from .giving import Choice, Claim, Room, Terms
from .models import EligibleSet, Requirement, Worker, Workload

_CANDIDATES: Final = statements.load("candidates")
_ROUNDS: Final = 5
# Rows looked at first beyond those that fit.
_SPARE: Final = 15


@dataclass(slots=True)
class Ledger:
    """What is left while work is chosen: of slots, of the worker's resources, of pools."""

    slots: int
    # Requirements that take nothing but a slot, and those that name a pool or resources.
    plain: list[int]
    bounded: dict[int, Requirement] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    pools: dict[str, int] = field(default_factory=dict)

    def fits(self, requirement_id: int) -> int:
        """How many more workloads of this requirement fit."""
        need = self.bounded.get(requirement_id)
        if need is None:
            return self.slots
        rooms = [self.slots, self.pools.get(need.pool_id, self.slots)]
        for name, amount in need.resources.items():
            if amount and name in self.resources:
                rooms.append(self.resources[name] // amount)
        return max(min(rooms), 0)

    def take(self, requirement_id: int, number: int = 1) -> None:
        """Count `number` workloads of this requirement in; a negative number gives them back."""
        self.slots -= number
        need = self.bounded.get(requirement_id)
        if need is None:
            return
        if need.pool_id in self.pools:
            self.pools[need.pool_id] -= number
        for name, amount in need.resources.items():
            if name in self.resources:
                self.resources[name] -= amount * number

    def caps(self, look: int, spare: int) -> dict[int, int]:
        """How many workloads of each requirement to look at; of those that do not fit, none.

        Of the others up to `spare` more than fit, for neighbours may have some of them.
        """
        if not self.slots:
            return {}
        fitting = {each: self.fits(each) for each in self.bounded}
        few = {each: min(number + spare, look) for each, number in fitting.items() if number}
        return {**dict.fromkeys(self.plain, look), **few}

    def choose(self, seen: list[dict[str, Any]]) -> Choice:
        """Take, in order, what fits; what does not is passed over."""
        quotas: Counter[int] = Counter()
        for row in seen:
            if self.fits(row["requirement_id"]):
                self.take(row["requirement_id"])
                quotas[row["requirement_id"]] += 1
        return Choice([row["id"] for row in seen], [row["requirement_id"] for row in seen], quotas)


def take(terms: Terms, slots: int, room: Room) -> list[Claim]:
    """New claims for a locked worker, in the order of urgency as far as they fit."""
    worker = terms.worker
    eligible = requirements.refresh(worker, workers.application_of(worker))
    ledger = _open(terms, eligible, slots)
    if ledger.pools:
        # Their locks may have been waited for, longer than a short lease lasts.
        terms = replace(terms, at=clock.now())
    taken: list[Claim] = []
    look, spare = giving.look_for(slots), _SPARE
    for _ in range(_ROUNDS):
        seen = _look(ledger, look, spare)
        if not seen:
            break
        choice = ledger.choose(seen)
        run = giving.give_chosen(terms, choice, room)
        taken += run.claims
        room = room.after(run)
        missed = Counter(choice.quotas)
        missed.subtract(run.requirement_ids)
        for requirement_id, number in missed.items():
            ledger.take(requirement_id, -number)
        is_missed = any(missed.values())
        if run.is_cut or (len(seen) < look and not is_missed):
            break
        if is_missed:
            # Neighbours hold some of these rows; there may be more behind them.
            look, spare = look * 4, spare * 4
    return taken


def _open(terms: Terms, eligible: EligibleSet, slots: int) -> Ledger:
    """Count what is left, under the locks of the worker and of the pools."""
    worker = terms.worker
    ids = set(eligible.requirement_ids)
    standing = pauses.standing(worker.application_id, terms.at)
    paused = {each.definition_id for each in standing}
    if "" in paused:
        return Ledger(slots, [])
    if paused:
        held = Requirement.objects.filter(pk__in=ids, definition_id__in=paused)
        ids -= set(held.values_list("pk", flat=True))
    bounded_ids = ids & set(eligible.bounded_ids)
    plain = sorted(ids - bounded_ids)
    if not bounded_ids:
        return Ledger(slots, plain)
    ready = Workload.objects.filter(requirement=OuterRef("pk"), claimable=True)
    waiting = Requirement.objects.filter(Exists(ready), pk__in=bounded_ids)
    bounded = {each.pk: each for each in waiting}
    pools = locking.lock_pools(
        worker.application_id, {each.pool_id for each in bounded.values() if each.pool_id}
    )
    return Ledger(slots, plain, bounded, _resources(worker, bounded), candidates.room_in(pools))


def _resources(worker: Worker, bounded: dict[int, Requirement]) -> dict[str, int]:
    if not any(each.resources for each in bounded.values()):
        return {}
    used = candidates.resources_used([worker.pk])
    return placement.left(worker.resource_profile, used.get(worker.pk, {}))


def _look(ledger: Ledger, look: int, spare: int) -> list[dict[str, Any]]:
    """The most urgent claimable work of requirements that fit, in order."""
    caps = ledger.caps(look, spare)
    if not caps:
        return []
    values = {"requirements": list(caps), "caps": list(caps.values())}
    return statements.rows(_CANDIDATES.replace("%(look)s", str(look)), values)
