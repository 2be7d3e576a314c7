"""The reference, of dependencies: what waits for what, and what an ending does to it."""

from __future__ import annotations

from .rows import ENDED, Refusal, Tie, Work


class Waiting:
    """Work is moved through `go` alone, so that no ending passes by what waits for it."""

    now: int
    works: list[Work]

    def go(self, work: Work, *states: str) -> None:
        work.go(*states)
        # What was left to the sweep is not left any more: either it is woken now, or waits again.
        work.is_pending = work.is_buried = False
        if work.state in ENDED:
            self._wake(work)

    def tie(self, work: Work, waits: list[tuple[Work, str]]) -> None:
        """New work waits for these, each named once; some may have ended already."""
        named = set(waits)
        if len({other for other, _ in named}) < len(named):
            raise Refusal("WORKLOAD_DEPENDENCY_INVALID")
        work.ties = [Tie(work, other, required) for other, required in named]
        for each in work.ties:
            each.is_open = each.on.state not in ENDED
        if any(each.has_failed for each in work.ties):
            work.go("DEAD_LETTER")
            work.is_buried = True

    def _open_on(self, work: Work) -> list[Tie]:
        return [t for each in self.works for t in each.ties if t.is_open and t.on is work]

    def _wake(self, work: Work) -> set[str]:
        """Close what waits for this ended work; the ids of what is free or buried by that.

        What a buried one's own dependents become is left to the sweep.
        """
        changed: set[str] = set()
        for tie in self._open_on(work):
            tie.is_open, waiting = False, tie.work
            if waiting.state != "READY" or (waiting.is_blocked and not tie.has_failed):
                continue
            changed.add(waiting.workload_id)
            if tie.has_failed:
                waiting.go("DEAD_LETTER")
                waiting.is_buried = True
                waiting.is_pending = bool(self._open_on(waiting))
            else:
                waiting.ready_at = self.now
        return changed

    def _release_dependents(self, last: int | None) -> set[str]:
        """Whole lines in one pass, for what waits came after what it waits for."""
        changed: set[str] = set()
        for work in self.works:
            if work.is_pending:
                work.is_pending = False
                changed |= self._wake(work)
        return changed

    # --- retries

    def require_met(self, work: Work) -> None:
        if any(each.has_failed for each in work.ties):
            raise Refusal("WORKLOAD_DEPENDENCY_OPEN")

    def wait_again(self, work: Work) -> None:
        """It is brought back: what it waited for is looked at anew, but what was met stays met."""
        for tie in work.ties:
            was_met = not tie.is_open and tie.required == "ANY_END"
            tie.is_open = not was_met and tie.on.state not in ENDED

    def buried_below(self, work: Work) -> list[Work]:
        """Dead letters of what they wait for, where that is this work or one of them."""
        found = [work]
        for each in self.works:
            above = [tie.on for tie in each.ties if tie.required == "SUCCEEDED"]
            is_dead = each.state == "DEAD_LETTER" and each.is_buried
            if is_dead and any(other in found for other in above):
                found.append(each)
        return found[1:]
