"""The reference of authority: coordinators, what people state, evidence, and how a run moves."""

from __future__ import annotations

from tests.model.rows import Refusal

from .rows import (
    EVIDENCE_MS,
    GRACE_MS,
    Attestation,
    Coordinator,
    Owner,
    Public,
    Run,
    Step,
)
from .working import Working


class Moving(Working):
    def __init__(self) -> None:
        self.now = 0
        # How many people a tenant asks for.
        self.people = 1
        self.runs: list[Run] = []
        self.coordinators: dict[str, Coordinator] = {}
        self.attestations: list[Attestation] = []

    # --- who has a run

    def require_current(self, run: Run, shown: Owner) -> None:
        if run.owner is None or run.owner != shown:
            raise Refusal("AUTHORITY_STALE")

    def require_open(self, run: Run) -> None:
        if run.status != "OPEN":
            raise Refusal("RUN_TERMINAL")

    def judge(self, run: Run, shown: Owner | None) -> None:
        """The authority, or (None) an operator; of an open run."""
        if shown is not None:
            self.require_current(run, shown)
        self.require_open(run)

    def claim(self, run: Run, shown: Owner) -> None:
        if shown.generation != 1:
            raise Refusal("TRANSITION_INVALID")
        if run.owner is None:
            self.require_open(run)
            run.owner = shown
            run.since[1] = self.now
        self.require_current(run, shown)

    # --- coordinators

    def is_alive(self, instance: str) -> bool:
        row = self.coordinators.get(instance)
        return row is not None and not row.has_relinquished and self.now < row.ends_at

    def register(self, instance: str, lease_ms: int) -> None:
        if instance not in self.coordinators:
            self.coordinators[instance] = Coordinator(self.now, lease_ms, self.now + lease_ms)
        elif not self.is_alive(instance):
            raise Refusal("COORDINATOR_ENDED")

    def beat(self, instance: str) -> None:
        if instance not in self.coordinators:
            raise Refusal("COORDINATOR_NOT_FOUND")
        if not self.is_alive(instance):
            raise Refusal("COORDINATOR_ENDED")
        row = self.coordinators[instance]
        row.ends_at = self.now + row.lease_ms

    def relinquish(self, instance: str) -> None:
        if instance not in self.coordinators:
            raise Refusal("COORDINATOR_NOT_FOUND")
        row = self.coordinators[instance]
        if self.now >= row.ends_at:
            raise Refusal("COORDINATOR_ENDED")
        row.has_relinquished = True

    # --- evidence

    def attest(self, run: Run, step: Step, person: str) -> Attestation:
        _require_step(step)
        mine = [
            each
            for each in self.attestations
            if (each.run, each.step) == (run, step) and person in each.people
        ]
        if mine and not self._is_too_old(mine[-1]):
            return mine[-1]
        made = Attestation(run, step, [])
        self.attestations.append(made)
        self._state(made, person)
        return made

    def confirm(self, made: Attestation, person: str) -> None:
        if person == made.people[0]:
            raise Refusal("PERMISSION_DENIED")
        if person not in made.people:
            self._state(made, person)

    def _state(self, made: Attestation, person: str) -> None:
        made.people.append(person)
        if made.completed_at is None and len(made.people) >= self.people:
            made.completed_at = self.now

    def _is_too_old(self, made: Attestation) -> bool:
        return made.completed_at is not None and self.now - made.completed_at > EVIDENCE_MS

    def _require_evidence(self, run: Run, step: Step) -> None:
        """That the old owner stopped: of coordinators as of now, of people as of their word."""
        _, before, after = step
        complete = [
            each
            for each in self.attestations
            if each.run is run and each.completed_at is not None and each.step[1][2] == before[2]
        ]
        same = [each for each in complete if each.step == step]
        others = [each for each in complete if each.step != step]
        if any(not self._is_too_old(each) for each in others):
            raise Refusal("EVIDENCE_MISMATCH")
        if self._has_stopped(run, before) and self.is_alive(after[1]):
            return
        if not same:
            raise Refusal("EVIDENCE_UNKNOWN")
        if all(self._is_too_old(each) for each in same):
            raise Refusal("EVIDENCE_EXPIRED")

    def _has_stopped(self, run: Run, owner: Public) -> bool:
        """One that was registered when it had the run already says nothing about its owner."""
        row, since = self.coordinators.get(owner[1]), run.since.get(owner[2])
        if row is None or since is None or row.registered_at > since:
            return False
        return row.has_relinquished or row.ends_at + GRACE_MS <= self.now

    # --- handoffs

    def hand_over(self, run: Run, mode: str, before: Owner, after: Owner) -> bool:
        """Whether it was made now; False for a repeat."""
        step = (mode, before.public, after.public)
        _require_step(step)
        is_told = run.owner is not None and before.public == run.owner.public
        known = {before.token, run.owner.token if run.owner is not None and is_told else None}
        if after.token in known:
            raise Refusal("TRANSITION_INVALID")
        if after.generation in run.handoffs:
            self._require_repeat(run, step, after)
            return False
        self._require_evidence(run, step)
        if not is_told or run.owner is None or before.token not in {None, run.owner.token}:
            raise Refusal("AUTHORITY_STALE")
        self.require_open(run)
        if mode == "normal":
            if run.unsettled:
                raise Refusal("WORK_OUTSTANDING")
            if "barrier" in run.blocks:
                raise Refusal("RECOVERY_PENDING")
        else:
            self.block(run, "barrier", after.public)
        run.past.append(run.owner)
        run.owner = after
        run.since[after.generation] = self.now
        run.handoffs[after.generation] = step
        return True

    def _require_repeat(self, run: Run, step: Step, after: Owner) -> None:
        """While that generation is current, whoever asks must also have its token."""
        is_current = run.owner is not None and run.owner.generation == after.generation
        if run.handoffs[after.generation] != step or (is_current and run.owner != after):
            raise Refusal("HANDOFF_CONFLICT")

    def adopt(self, run: Run, after: Owner) -> None:
        if run.coordinator == "builtin" and run.owner == after:
            return
        if run.owner is None:
            self.claim(run, after)
        else:
            is_quiet = not run.unsettled and "barrier" not in run.blocks
            before = Owner(*run.owner.public, token=None)
            self.hand_over(run, "normal" if is_quiet else "recovery", before, after)
        run.coordinator = "builtin"

    # --- blocks

    def block(self, run: Run, kind: str, what: object) -> None:
        run.blocks[kind] = what
        self.obey(run)

    def unblock(self, run: Run, kind: str) -> None:
        run.blocks.pop(kind, None)
        self.obey(run)

    def obey(self, run: Run) -> None:
        for each in run.unsettled:
            each.work.is_held = bool(run.blocks)


def _require_step(step: Step) -> None:
    _, before, after = step
    if before[2] < 1 or after[2] != before[2] + 1 or before[1] == after[1]:
        raise Refusal("TRANSITION_INVALID")
