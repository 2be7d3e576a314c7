"""Rules about who has a run: claims, coordinators, what people state, hand-overs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mesh.models import Role
from workflows import adoption, attestations, authority, coordinators, handoffs, recovery
from workflows.models import HandoffMode
from workflows.transitions import Transition

from .both import INSTANCES, pick, some, who, whole
from .rows import Attestation, Owner, Run
from .work_rules import WorkRules

instances = st.sampled_from(INSTANCES)
modes = st.sampled_from(["normal", "recovery"])
people = st.sampled_from(["human:ann", "human:ben"])
# What is not as it should be in a transition; mostly nothing.
slips = st.sampled_from([*["none"] * 8, "artifact", "generation", "instance", "token", "no token"])


class AuthorityRules(WorkRules):
    @rule(number=some, instance=instances, generation=st.sampled_from([1, 1, 1, 2]))
    def claim_run(self, number: int, instance: str, generation: int) -> None:
        run = self.run_of(number)
        shown = Owner("coordinator:1.0", instance, generation, f"{instance} 1")
        if number % 4 == 0 and run.owner is not None:
            shown = run.owner
        self.both(
            lambda: self.model.claim(run, shown),
            lambda: authority.claim(**self.asked(run), authority=whole(shown)),
        )

    # --- coordinators

    @rule(
        instance=instances,
        lease_ms=st.sampled_from([1_000, 30_000, 600_000]),
        what=st.sampled_from(["register", "register", "beat", "relinquish"]),
    )
    def say_as_coordinator(self, instance: str, lease_ms: int, what: str) -> None:
        if what == "register":
            self._register(instance, lease_ms)
            return
        expected = getattr(self.model, what)
        call = coordinators.heartbeat if what == "beat" else coordinators.relinquish
        self.both(
            lambda: expected(instance), lambda: call(caller=self.service, instance_id=instance)
        )

    def _register(self, instance: str, lease_ms: int) -> None:
        self.both(
            lambda: self.model.register(instance, lease_ms),
            lambda: coordinators.register(
                caller=self.service,
                instance_id=instance,
                artifact="coordinator:1.0",
                lease_ms=lease_ms,
            ),
        )

    @precondition(lambda self: self.model.coordinators)
    @rule(number=some, late_ms=st.sampled_from([-1, 0, 4_999, 5_000]))
    def wait_for_an_end(self, number: int, late_ms: int) -> None:
        """Until a lease ends, or what is granted beyond it."""
        row = pick(list(self.model.coordinators.values()), number)
        # The next question is asked one millisecond later.
        if (ms := row.ends_at + late_ms - self.model.now - 1) > 0:
            self.wait(ms)

    # --- hand-overs

    def transition(self, run: Run, instance: str, slip: str) -> tuple[Owner, Owner]:
        """From the owner to another one, or nearly so."""
        before = run.owner or Owner("coordinator:1.0", "stranger", 1, None)
        generation = before.generation + (2 if slip == "generation" else 1)
        token = f"{instance} {generation}"
        if slip == "instance":
            instance = before.instance
        if slip == "token" and before.token:
            token = before.token
        artifact = "coordinator:1.1" if slip == "artifact" else "coordinator:1.0"
        if slip == "no token":
            before = Owner(*before.public, token=None)
        return before, Owner(artifact, instance, generation, token)

    @rule(number=some, instance=instances, mode=modes, slip=slips, person=people)
    def attest(self, number: int, instance: str, mode: str, slip: str, person: str) -> None:
        run = self.run_of(number)
        self._attest(run, mode, *self.transition(run, instance, slip), person)

    def _attest(self, run: Run, mode: str, before: Owner, after: Owner, person: str) -> None:
        step = (mode, before.public, after.public)
        made, row = self.both(
            lambda: self.model.attest(run, step, person),
            lambda: attestations.attest(
                caller=self.world.caller(Role.ADMIN, person),
                run_id=run.run_id,
                transition=Transition(HandoffMode(mode), whole(before), whole(after)),
                statement="It is switched off.",
            ),
        )
        if row is not None:
            assert made.attestation_id in {"", row.attestation_id}
            made.attestation_id = row.attestation_id

    @precondition(lambda self: self.model.attestations)
    @rule(number=some, person=people)
    def confirm(self, number: int, person: str) -> None:
        self._confirm(pick(self.model.attestations[::-1], number), person)

    def _confirm(self, made: Attestation, person: str) -> None:
        self.both(
            lambda: self.model.confirm(made, person),
            lambda: attestations.confirm(
                caller=self.world.caller(Role.ADMIN, person),
                attestation_id=made.attestation_id,
                statement="I saw it.",
            ),
        )

    @rule(number=some, by=who, instance=instances, mode=modes, slip=slips)
    def hand_over(self, number: int, by: str, instance: str, mode: str, slip: str) -> None:
        run = self.run_of(number)
        before, after = self.transition(run, instance, slip)
        if by != "current":
            before = self.owner(run, by)
        self._hand_over(run, mode, before, after)

    @rule(
        number=some,
        instance=instances,
        mode=modes,
        by_people=st.booleans(),
        late_ms=st.sampled_from([0, 0, 0, 0, 59_998, 59_999, 60_000]),
    )
    def hand_over_soundly(
        self, number: int, instance: str, mode: str, by_people: bool, late_ms: int
    ) -> None:
        """With evidence, of people or of the old owner, which may be too old by then."""
        run = self.run_of(number)
        before, after = self.transition(run, instance, "none")
        if by_people:
            self._attest(run, mode, before, after, "human:ann")
            if self.model.attestations:
                self._confirm(self.model.attestations[-1], "human:ben")
        else:
            self._register(before.instance, 30_000)
            self._register(instance, 600_000)
            self.say_as_coordinator(before.instance, 0, "relinquish")
        if late_ms:
            self.wait(late_ms)
        self._hand_over(run, mode, before, after)

    @precondition(lambda self: any(run.handoffs for run in self.model.runs))
    @rule(number=some, slip=st.sampled_from(["none", "none", "mode", "token", "instance"]))
    def hand_over_again(self, number: int, slip: str) -> None:
        run = pick([each for each in self.model.runs if each.handoffs], number)
        generation = pick(sorted(run.handoffs, reverse=True), number)
        mode, before, after = run.handoffs[generation]
        assert run.owner is not None
        [owner] = [each for each in [*run.past, run.owner] if each.generation == generation]
        token = "another one" if slip == "token" else owner.token
        if slip == "mode":
            mode = "recovery" if mode == "normal" else "normal"
        if slip == "instance":
            after = (after[0], "stranger", after[2])
        self._hand_over(run, mode, Owner(*before, token=None), Owner(*after, token=token))

    def _hand_over(self, run: Run, mode: str, before: Owner, after: Owner) -> None:
        made, done = self.both(
            lambda: self.model.hand_over(run, mode, before, after),
            lambda: handoffs.hand_over(
                **self.asked(run),
                mode=HandoffMode(mode),
                expected=whole(before),
                replacement=whole(after),
            ),
        )
        if done is not None:
            assert done.created is made
            assert run.owner is not None
            assert public(done.run) == run.owner.public

    @rule(number=some, by=who)
    def finish_recovery(self, number: int, by: str) -> None:
        run = self.run_of(number)
        shown = self.owner(run, by)
        self.both(
            lambda: self.model.finish(run, shown),
            lambda: recovery.finish(**self.asked(run), authority=whole(shown)),
        )

    @rule(number=some, instance=instances, is_sound=st.booleans())
    def adopt(self, number: int, instance: str, is_sound: bool) -> None:
        run = self.run_of(number)
        if is_sound and run.owner is not None:
            self._register(run.owner.instance, 600_000)
            self._register(instance, 600_000)
            self.say_as_coordinator(run.owner.instance, 0, "relinquish")
        generation = run.owner.generation + 1 if run.owner is not None else 1
        after = Owner("coordinator:1.0", instance, generation, f"{instance} {generation}")
        if number % 5 == 0 and run.owner is not None:
            after = run.owner
        self.both(
            lambda: self.model.adopt(run, after),
            lambda: adoption.adopt(
                **self.asked(run), reason="it is away", replacement=whole(after)
            ),
        )


def public(row: Any) -> tuple[str, str, int]:
    return (row.target_artifact_id, row.instance_id, row.generation)
