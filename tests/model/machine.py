"""Random calls to the real mesh and to the reference; after each step both must agree.

Old claims, stale tokens and displaced processes are presented on purpose. Time stands still but
for the rules that let it pass, often to the very moment at which something turns.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from mesh import recovery
from mesh.models import Attempt, LateReport, Worker, Workload, WorkloadEvent
from workflows import sweeps

from .both import some
from .rows import LIVE
from .work_rules import WorkRules, policies, timeouts
from .worker_rules import NAMES

# Runs have a reference of their own.
SWEEPS = [each for each in recovery.SWEEPS if each not in sweeps.SWEEPS]


class MeshMachine(WorkRules):
    # --- setting out

    @initialize(
        concurrencies=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        works=st.lists(st.tuples(policies, timeouts, st.booleans()), min_size=2, max_size=4),
        begun=st.integers(0, 2),
        depth=st.integers(0, 3),
    )
    def set_out(
        self,
        concurrencies: tuple[int, int],
        works: list[tuple[dict[str, Any], dict[str, int], bool]],
        begun: int,
        depth: int,
    ) -> None:
        self.issue(0)
        for _ in range(depth):
            self.derive(-1, None)
        for name, zone, concurrency in zip(NAMES, "ab", concurrencies, strict=False):
            self.register(name, zone, concurrency, abandon=False, as_itself=True)
        self.everybody_beats()
        for policy, limits, is_hold in works:
            self.submit(0, 0, None, policy, limits, is_hold)
        for number in range(begun):
            self.begin(number, 1, None)

    @rule(number=some, times=st.integers(1, 4), what=st.sampled_from(["release", "fail"]))
    def lose_again(self, number: int, times: int, what: str) -> None:
        """One worker gets work and gives it back or fails with it, as soon as it may, again."""
        process = self.process(number | 1)
        for _ in range(times):
            before = len(self.tries)
            self.claim(number | 1, 1, None)
            for each in self.tries[before:]:
                if what == "fail":
                    self.say("start", process, each, each.token)
                    self.say("fail", process, each, each.token, kind="timeout", no_effect=True)
                else:
                    self.say("release", process, each, each.token)
                if each.work.state == "DEAD_LETTER":
                    self.retry(each.work.number, 1, False)
                self.wait(max(each.work.available_at - self.model.now, 0), True)
            self.work_agrees()

    # --- sweeps

    @rule(name=st.sampled_from(SWEEPS))
    def one_sweep(self, name: str) -> None:
        self.sweep(name)

    def sweep(self, name: str) -> None:
        report = recovery.run(name)
        wanted = self.model.sweep(name, report.changed)
        assert "failed" not in report.counts
        if name != "promote_due":
            assert len(report.changed) == len(set(report.changed))
            assert set(report.changed) == wanted, set(report.changed) ^ wanted

    @rule()
    def sweep_all(self) -> None:
        for name in SWEEPS:
            self.sweep(name)

    # --- what must be so after every step

    @invariant()
    def workers_agree(self) -> None:
        rows = {each.name: each for each in Worker.objects.filter(tenant=self.world.tenant)}
        assert rows.keys() == self.model.workers.keys()
        for name, man in self.model.workers.items():
            row, live = rows[name], self.model.live(man)
            said = (row.lifecycle, row.health, row.active, row.incarnation, row.is_unreconciled)
            assert said == (
                man.lifecycle,
                man.health,
                len(live),
                man.incarnation,
                man.is_unreconciled,
            ), name
            assert (row.drain_cause, row.concurrency) == (man.drain_cause, man.concurrency)
            assert row.grant_id == man.right.pk

    @invariant()
    def work_agrees(self) -> None:
        rows = {
            each.workload_id: each for each in Workload.objects.filter(tenant=self.world.tenant)
        }
        paths: dict[int, list[str]] = {each.pk: ["CREATED"] for each in rows.values()}
        events = WorkloadEvent.objects.filter(workload__tenant=self.world.tenant)
        for event in events.order_by("workload_id", "sequence"):
            path = paths[event.workload_id]
            assert event.sequence == len(path)
            assert event.from_state == path[-1]
            path.append(event.to_state)
        for work in self.model.works:
            row = rows[work.workload_id]
            assert row.state == work.state
            assert paths[row.pk][1:] == work.path
            self._require_finality(work.path)
            counted = (row.fencing_token, row.started_attempts, row.unstarted_losses)
            assert counted == (len(work.tries), work.started, work.unstarted)
            waits = (row.open_dependencies, row.dependents_pending)
            assert waits == (work.waits_for, work.is_pending)
            if work.state == "READY":
                assert row.available_at == self.at(work.available_at)
            assert not row.claimable or work.is_claimable(self.model.now)

    def _require_finality(self, path: list[str]) -> None:
        for state, after in pairwise(path):
            assert state not in {"SUCCEEDED", "CANCELLED"}, path
            assert state != "DEAD_LETTER" or after in {"READY", "CANCELLED"}, path

    @invariant()
    def attempts_agree(self) -> None:
        rows = {
            each.claim_id: each
            for each in Attempt.objects.filter(workload__tenant=self.world.tenant)
        }
        assert len(rows) == len(self.tries)
        for each in self.tries:
            row = rows[each.claim_id]
            assert (row.status, row.fencing_token) == (each.status, each.token)
            if each.is_live:
                assert row.expires_at == self.at(each.expires_at)
        late = LateReport.objects.filter(attempt__workload__tenant=self.world.tenant)
        assert late.count() == len(self.model.late)
        for work in self.model.works:
            assert sum(each.status in LIVE for each in work.tries) <= 1
            assert sum(each.status == "SUCCEEDED" for each in work.tries) <= 1
