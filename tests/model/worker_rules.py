"""Rules about time, and about workers: they register, beat, reconcile and drain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import rule

from mesh import (
    clock,
    liveness,
    workers,
)

from .both import Process, some
from .right_rules import RightRules
from .rows import MEMORY, Man, Try

NAMES: Final = ("ant", "bee", "cat")
waits = st.sampled_from([1, 999, 1_000, 4_999, 10_000, 29_999, 30_001, 60_000, 300_000])


class WorkerRules(RightRules):
    # --- time

    @rule(ms=waits, is_heard=st.booleans())
    def wait(self, ms: int, is_heard: bool) -> None:
        self.model.now += ms
        self._set_clock()
        if is_heard:
            self.everybody_beats()

    @rule(number=some, early=st.sampled_from([0, 0, 1]))
    def wait_until_something_turns(self, number: int, early: int) -> None:
        if found := self.model.boundaries():
            self.wait(max(found[number % min(len(found), 4)] - self.model.now - early, 0), False)

    @rule()
    def everybody_beats(self) -> None:
        for each in self.processes:
            if not each.is_displaced:
                self._beat(each, self.model.live(each.man), "HEALTHY", None)

    # --- workers

    @rule(
        name=st.sampled_from(NAMES),
        zone=st.sampled_from("ab"),
        concurrency=st.integers(1, 3),
        abandon=st.booleans(),
        as_itself=st.sampled_from([True, True, True, False]),
        number=some,
    )
    def register(
        self,
        name: str,
        zone: str,
        concurrency: int,
        abandon: bool,
        as_itself: bool,
        number: int = 1,
    ) -> None:
        right = self.right(number)
        said = Man(name, zone, concurrency, self.model.now, right)
        credential = self._credential(name) if as_itself else None
        registration = self.world.registration(
            name=name,
            grant=right.token,
            registered_by=right.subject,
            labels={"zone": zone},
            resource_profile={"memory_bytes": MEMORY},
            concurrency=concurrency,
            abandon_claims=abandon,
        )
        must_reconcile, answer = self.both(
            lambda: self._register(said, credential is not None, abandon),
            lambda: liveness.register(registration=registration, credential=credential),
        )
        if answer is None:
            return
        man = self.model.workers[name]
        man.worker_id = answer.worker.worker_id
        assert answer.reconcile_required is must_reconcile
        caller = workers.authenticate(answer.credential)
        self.processes.append(Process(man, caller, answer.credential, man.incarnation))

    def _register(self, said: Man, is_itself: bool, abandon: bool) -> bool:
        return self.model.register(said, is_itself=is_itself, abandon=abandon)

    def _credential(self, name: str) -> str | None:
        own = [each.credential for each in self.processes if each.man.name == name]
        return own[-1] if own else None

    @rule(number=some, drains=st.sampled_from([None, True, False]), listing=some)
    def restart(self, number: int, drains: bool | None, listing: int) -> None:
        """The worker's process is replaced, perhaps while it drains, and knows some claims."""
        man = self.process(number | 1).man
        if drains is not None:
            self._drain(self.process(number | 1), drains, None)
        self.register(man.name, man.zone, man.concurrency, abandon=False, as_itself=True)
        own = [each for each in self.processes if each.man is man]
        self._reconcile(own[-1], self._listed(man, listing), [])

    @rule(
        number=some,
        health=st.sampled_from(["HEALTHY", "HEALTHY", "HEALTHY", "DEGRADED"]),
        concurrency=st.sampled_from([None, None, None, 1, 3]),
        listing=some,
    )
    def heartbeat(self, number: int, health: str, concurrency: int | None, listing: int) -> None:
        process = self.process(number)
        self._beat(process, self._listed(process.man, listing), health, concurrency)

    def _beat(
        self, process: Process, listed: list[Try], health: str, concurrency: int | None
    ) -> None:
        wanted, beat = self.both(
            self.as_process(
                process,
                lambda: self.model.heartbeat(process.man, listed, health, concurrency),
            ),
            lambda: liveness.heartbeat(
                caller=process.caller,
                worker_id=process.man.worker_id,
                version="1.0",
                capability_version=1,
                health=health,
                timestamp=clock.now(),
                running_claims=[each.claim_id for each in listed],
                concurrency=concurrency,
            ),
        )
        if beat is not None:
            assert wanted == {
                "renewed": {each.claim_id for each in beat.renewed},
                "fenced": set(beat.fenced_claims),
                "cancel": set(beat.cancel_claims),
                "missing": set(beat.missing_claims),
                "assigned": {each.claim_id for each in beat.assigned_claims},
            }

    def _listed(self, man: Man, number: int) -> list[Try]:
        """Some of the worker's live claims and, at times, an old or foreign one."""
        live = self.model.live(man)
        listed = [each for place, each in enumerate(live) if not number >> place & 1]
        if self.tries and number % 3 == 0:
            other = self.tries[number % len(self.tries)]
            listed += [] if other in listed else [other]
        return listed

    @rule(number=some, listing=some, reporting=some)
    def reconcile(self, number: int, listing: int, reporting: int) -> None:
        lost = [each for each in self.processes if each.man.is_unreconciled]
        process = lost[-1] if lost and number % 4 else self.process(number)
        known = self._listed(process.man, listing)
        reported = self._listed(process.man, reporting) if reporting % 2 else []
        self._reconcile(process, known, reported)

    def _reconcile(self, process: Process, known: list[Try], reported: list[Try]) -> None:
        wanted, answer = self.both(
            self.as_process(process, lambda: self.model.reconcile(process.man, known, reported)),
            lambda: liveness.reconcile(
                caller=process.caller,
                worker_id=process.man.worker_id,
                worker_version="1.0",
                capability_version=1,
                known_claims=[each.claim_id for each in known],
                running_attempts=[each.attempt_id for each in known],
                completed_attempts=[each.attempt_id for each in reported],
                failed_attempts=[],
                timestamp=clock.now(),
            ),
        )
        if answer is not None:
            assert set(answer.authoritative_claims) == wanted["authoritative"]
            assert set(answer.fenced_claims) == wanted["fenced"]
            assert answer.reports == wanted["reports"]
            assert set(answer.cancel_attempts) == wanted["cancel"]

    @rule(
        number=some,
        what=st.sampled_from(["drain", "drain", "undrain", "recover", "back", "back"]),
        by_itself=st.booleans(),
        deadline_ms=st.sampled_from([None, 3_000]),
    )
    def operate(self, number: int, what: str, by_itself: bool, deadline_ms: int | None) -> None:
        process = self.process(number)
        if what == "drain":
            self._drain(process, by_itself, deadline_ms)
        elif what == "back":
            self._bring_back(process)
        else:
            self._operate(process.man, what)

    def _drain(self, process: Process, by_itself: bool, deadline_ms: int | None) -> None:
        man = process.man
        cause = "worker" if by_itself else "operator"

        def drained() -> None:
            self.model.drain(man, cause, deadline_ms)

        self.both(
            self.as_process(process, drained) if by_itself else drained,
            lambda: workers.drain(
                caller=process.caller if by_itself else self.world.operator,
                worker_id=man.worker_id,
                deadline_ms=deadline_ms,
            ),
        )

    def _operate(self, man: Man, what: str) -> None:
        expected: Callable[[Man], None] = getattr(self.model, what)
        call = getattr(workers, what)
        self.both(
            lambda: expected(man),
            lambda: call(caller=self.world.operator, worker_id=man.worker_id),
        )

    def _bring_back(self, process: Process) -> None:
        """Whatever its state, see that the worker can work again."""
        if process.man.lifecycle in {"OFFLINE", "DRAINING"}:
            self._operate(
                process.man, "recover" if process.man.lifecycle == "OFFLINE" else "undrain"
            )
        self._reconcile(process, self.model.live(process.man), [])
        self._beat(process, self.model.live(process.man), "HEALTHY", None)
