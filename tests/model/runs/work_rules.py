"""Rules about the work of runs: it is delivered, reported, lost, and steered by people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mesh import leases, placing, resolutions, workloads
from mesh import settlement as reports

from .both import Both, pick, some
from .rows import Claim, Work

outputs = st.sampled_from([None, 1, {"pages": 2}])
RESOLUTIONS = ("succeeded", "failed", "cancelled", "requeue")
GIVEN_BACK = ("release", "cancelled")
# Longer than any example waits between two heartbeats.
LEASE_MS = 900_000

_STEERING: Mapping[str, Callable[..., object]] = {
    "reclaim": resolutions.reclaim,
    "cancel_work": workloads.cancel,
    "retry": workloads.retry,
}


class WorkRules(Both):
    # --- the worker

    @precondition(lambda self: self.attempts())
    @rule(number=some)
    def place(self, number: int) -> None:
        self._place(self.attempt(number).work)

    def _place(self, work: Work) -> None:
        made, claim = self.both(
            lambda: self.model.place(work),
            lambda: placing.place(
                caller=self.world.operator,
                workload_id=work.workload_id,
                worker_id=self.worker.worker_id,
                lease_ms=LEASE_MS,
            ),
        )
        if made is not None:
            made.claim = claim

    def claims(self) -> list[Claim]:
        return [claim for attempt in self.attempts() for claim in attempt.work.claims]

    def a_claim(self, number: int) -> Claim:
        """Mostly the latest of some work."""
        works = [each.work for each in self.attempts() if each.work.claims]
        live = [each for each in works if each.current or each.state == "HELD"]
        if number % 6 == 0:
            return pick(self.claims(), number)
        return pick(live or works, number).claims[-1]

    @precondition(lambda self: self.claims())
    @rule(
        number=some,
        what=st.sampled_from(["start", "complete", "complete", "timeout", "broken", *GIVEN_BACK]),
        output=outputs,
        no_effect=st.booleans(),
    )
    def report(self, number: int, what: str, output: Any, no_effect: bool) -> None:
        claim = self.a_claim(number)
        if what == "start":
            self._start(claim)
        elif what == "complete":
            self._complete(claim, output)
        elif what in GIVEN_BACK:
            self._give_back(claim, what)
        else:
            self._fail(claim, what, no_effect=no_effect)

    def _start(self, claim: Claim) -> None:
        shown = self.worker.presenting(claim.claim)
        self.both(lambda: self.model.start(claim), lambda: leases.start(**shown))

    def _complete(self, claim: Claim, output: Any) -> None:
        shown = self.worker.presenting(claim.claim)
        result_id = f"result of {claim.claim.claim_id}"
        self.both(
            lambda: self.model.complete(claim, output),
            lambda: reports.complete(**shown, result_id=result_id, output=output),
        )

    def _fail(self, claim: Claim, kind: str, *, no_effect: bool) -> None:
        shown = self.worker.presenting(claim.claim)
        self.both(
            lambda: self.model.fail(claim, kind, no_effect),
            lambda: reports.fail(**shown, kind=kind, error="It broke.", no_effect=no_effect),
        )

    def _give_back(self, claim: Claim, what: str) -> None:
        shown = self.worker.presenting(claim.claim)
        if what == "release":
            self.both(lambda: self.model.release(claim), lambda: reports.release(**shown))
        else:
            self.both(lambda: self.model.cancelled(claim), lambda: reports.cancelled(**shown))

    # --- people

    @precondition(lambda self: self.attempts())
    @rule(number=some, what=st.sampled_from(["reclaim", "cancel_work", "retry", "resolve"]))
    def steer_work(self, number: int, what: str) -> None:
        """Whatever becomes of it, and mostly it is refused."""
        work = self.attempt(number).work
        if what == "resolve":
            self._resolve(work, pick(RESOLUTIONS, number), None)
        else:
            self._steer_work(work, what)

    def _steer_work(self, work: Work, what: str) -> None:
        asked = {**self._named(work), "reason": "it hangs"}
        expected, call = getattr(self.model, what), _STEERING[what]
        self.both(lambda: expected(work), lambda: call(**asked))

    def _named(self, work: Work) -> dict[str, Any]:
        return {"caller": self.world.operator, "workload_id": work.workload_id}

    def works_in(self, *states: str) -> list[Work]:
        return [each.work for each in self.attempts() if each.work.state in states]

    @precondition(lambda self: self.works_in("RUNNING", "CANCELLATION_REQUESTED"))
    @rule(number=some, what=st.sampled_from(["reclaim", "reclaim", "cancel_work"]))
    def interrupt(self, number: int, what: str) -> None:
        self._steer_work(pick(self.works_in("RUNNING", "CANCELLATION_REQUESTED"), number), what)

    @precondition(lambda self: self.works_in("DEAD_LETTER"))
    @rule(number=some, what=st.sampled_from(["retry", "retry", "cancel_work"]))
    def dig_up(self, number: int, what: str) -> None:
        self._steer_work(pick(self.works_in("DEAD_LETTER")[::-1], number), what)

    @precondition(lambda self: self.works_in("HELD"))
    @rule(number=some, resolution=st.sampled_from(RESOLUTIONS), output=outputs)
    def resolve(self, number: int, resolution: str, output: Any) -> None:
        self._resolve(pick(self.works_in("HELD"), number), resolution, output)

    def _resolve(self, work: Work, resolution: str, output: Any) -> None:
        said = output if resolution == "succeeded" else None
        self.both(
            lambda: self.model.resolve(work, resolution, said),
            lambda: resolutions.resolve(
                **self._named(work), resolution=resolution, reason="nobody knows", output=said
            ),
        )

    @rule(ms=st.sampled_from([10, 900, 4_999, 5_000, 30_000, 59_998, 59_999, 60_000]))
    def wait(self, ms: int) -> None:
        self.pass_(ms)
        live = [each.work.current for each in self.attempts() if each.work.current]
        self.worker.beat(*[each.claim.claim_id for each in live])
