"""The reference of the mesh under runs: one worker with room for all, no delays, no timeouts."""

from __future__ import annotations

from typing import Any

from tests.model.rows import Refusal

from .rows import Claim, Work


class Working:
    """Each method is one call; a refused one changes nothing."""

    def place(self, work: Work) -> Claim:
        if work.is_sealed:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        if work.state != "READY":
            raise Refusal("WORKLOAD_NOT_READY")
        if work.is_held:
            raise Refusal("MESH_RUN_BLOCKED")
        claim = Claim(work)
        work.claims.append(claim)
        work.state, work.is_taken = "CLAIMED", True
        return claim

    def _fence(self, claim: Claim) -> None:
        if claim.work.current is None:
            raise Refusal("WORKLOAD_CLAIM_INVALID")
        if claim.work.current is not claim:
            raise Refusal("WORKLOAD_STALE_FENCE")

    def _late_fence(self, claim: Claim) -> None:
        """Held work of the latest claim may still be reported."""
        work = claim.work
        if work.is_hold and claim.is_started:
            if claim is not work.claims[-1]:
                raise Refusal("WORKLOAD_STALE_FENCE")
            if work.state == "HELD":
                return
        self._fence(claim)

    def _require_under_way(self, claim: Claim) -> None:
        states = {"HELD", "CANCELLATION_REQUESTED"} if self._may_be_late(claim) else set()
        if claim.work.state not in {"RUNNING", *states}:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")

    def _may_be_late(self, claim: Claim) -> bool:
        return claim.work.is_hold and claim.is_started

    def start(self, claim: Claim) -> None:
        self._fence(claim)
        if claim.work.state == "CANCELLATION_REQUESTED":
            raise Refusal("WORKLOAD_CANCELLATION_REQUESTED")
        if claim.is_started:
            return
        if claim.work.is_held:
            raise Refusal("MESH_RUN_BLOCKED")
        claim.is_started = True
        claim.work.started += 1
        claim.work.state = "RUNNING"

    def complete(self, claim: Claim, output: Any) -> None:
        work = claim.work
        if work.result is not None and work.result[0] is claim:
            if work.result[1] != output:
                raise Refusal("WORKLOAD_RESULT_DUPLICATE")
            return
        self._late_fence(claim)
        self._require_under_way(claim)
        work.result = (claim, output)
        self._end(claim, "SUCCEEDED", ("complete", output))

    def fail(self, claim: Claim, kind: str, no_effect: bool) -> None:
        report = ("fail", kind, no_effect)
        if claim.report == report:
            return
        self._late_fence(claim)
        self._require_under_way(claim)
        work = claim.work
        has_budget = kind == "timeout" and work.started < work.budget
        if work.is_cancel_asked:
            self._end(claim, "CANCELLED", report)
        elif has_budget and (no_effect or not work.is_hold):
            self._end(claim, "READY", report)
        else:
            self._end(claim, "DEAD_LETTER", report)

    def cancelled(self, claim: Claim) -> None:
        if claim.report == ("cancelled",):
            return
        self._fence(claim)
        if claim.work.state != "CANCELLATION_REQUESTED":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        self._end(claim, "CANCELLED", ("cancelled",))

    def release(self, claim: Claim) -> None:
        if claim.report == ("release",):
            return
        self._fence(claim)
        if claim.work.state == "CANCELLATION_REQUESTED":
            self._end(claim, "CANCELLED", ("release",))
        elif claim.is_started:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        else:
            self._end(claim, "READY", ("release",))

    def _end(self, claim: Claim, state: str, report: Any) -> None:
        claim.report = report
        claim.work.state, claim.work.is_taken = state, False

    # --- by people

    def reclaim(self, work: Work) -> None:
        current = work.current
        if current is None:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        work.is_taken = False
        if work.is_hold and current.is_started:
            work.state = "HELD"
        elif work.state == "CANCELLATION_REQUESTED":
            work.state = "CANCELLED"
        elif current.is_started and work.started >= work.budget:
            work.state = "DEAD_LETTER"
        else:
            work.state = "READY"

    def cancel_work(self, work: Work) -> None:
        if work.state in {"CANCELLED", "CANCELLATION_REQUESTED"}:
            return
        if work.state in {"SUCCEEDED", "HELD"}:
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        work.state = "CANCELLED" if work.current is None else "CANCELLATION_REQUESTED"
        work.is_cancel_asked = True

    def retry(self, work: Work) -> None:
        if work.is_sealed or work.state != "DEAD_LETTER":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        self._offer(work)

    def resolve(self, work: Work, resolution: str, output: Any) -> None:
        if work.is_sealed or work.state != "HELD":
            raise Refusal("WORKLOAD_TRANSITION_DENIED")
        if resolution == "requeue":
            self._offer(work)
        elif resolution == "succeeded":
            work.state, work.result = "SUCCEEDED", (None, output)
        elif resolution == "cancelled":
            work.state, work.is_given_up_by_a_person = "CANCELLED", True
        else:
            work.state = "DEAD_LETTER"

    def _offer(self, work: Work) -> None:
        """One attempt more than the budget, and a cancel that was asked for is forgotten."""
        work.budget += 1
        work.state, work.is_cancel_asked = "READY", False
