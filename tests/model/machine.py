"""Random calls to the real mesh and to the reference; after each step both must agree.

Old claims, stale tokens and displaced processes are presented on purpose. Time stands still but
for the rules that let it pass, often to the very moment at which something turns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, TypeVar

from django.db import connection, transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mesh import (
    claims,
    clock,
    intake,
    invariants,
    leases,
    liveness,
    placing,
    pools,
    recovery,
    refusals,
    resolutions,
    settlement,
    workers,
    workloads,
)
from mesh.errors import DomainError
from mesh.models import Attempt, LateReport, SweepRun, Worker, Workload, WorkloadEvent
from mesh.tenancy import Caller
from tests.factories import World

from .reference import LIVE, MEMORY, Man, Mesh, Refusal, Try, Work

T = TypeVar("T")
POOL: Final = "p"
NAMES: Final = ("ant", "bee", "cat")
# Any number stands for some member of a list that is not empty.
some = st.integers(0, 999)
# Mostly the token as it is, sometimes another one.
tokens = st.sampled_from([0, 0, 0, 0, 0, 1, -1])
lengths = st.sampled_from([None, None, 1_000, 20_000, 900_000])
kinds = st.sampled_from(["transient_connection", "timeout", "broken"])
waits = st.sampled_from([1, 999, 1_000, 4_999, 10_000, 29_999, 30_001, 60_000, 300_000])
policies = st.fixed_dictionaries(
    {
        "max_attempts": st.integers(1, 3),
        "initial_delay_ms": st.sampled_from([0, 0, 1_000, 7_000]),
        "max_delay_ms": st.sampled_from([1_500, 300_000]),
        "backoff": st.sampled_from(["fixed", "exponential"]),
        "retry_on": st.sampled_from([["worker_failure", "timeout", "transient_connection"], []]),
        "max_unstarted": st.integers(1, 4),
    }
)
timeouts = st.fixed_dictionaries(
    {},
    optional={
        "overall_ms": st.sampled_from([8_000, 60_000]),
        "execution_ms": st.sampled_from([1_000, 15_000]),
        "heartbeat_ms": st.sampled_from([3_000, 12_000]),
        "claim_ms": st.sampled_from([1_000, 5_000]),
        "queue_ms": st.sampled_from([2_000, 20_000]),
        "cancel_grace_ms": st.sampled_from([1_000, 60_000]),
    },
)


@dataclass
class Process:
    """A process that registered as a worker; it may have been displaced since."""

    man: Man
    caller: Caller
    credential: str
    incarnation: int

    @property
    def is_displaced(self) -> bool:
        return self.incarnation != self.man.incarnation


class MeshMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._undo = ExitStack()
        self._undo.enter_context(transaction.atomic())
        self._clock = self._undo.enter_context(ExitStack())
        SweepRun.objects.all().delete()
        self.world = World()
        self.model = Mesh()
        self.start = clock.now().replace(microsecond=0)
        self._set_clock()
        self.grant = self.world.grant(expires_in_ms=300 * 86_400_000)[1]
        self.processes: list[Process] = []
        self.tries: list[Try] = []

    def teardown(self) -> None:
        try:
            connection.check_constraints()
            assert invariants.broken() == {}
        finally:
            transaction.set_rollback(True)
            self._undo.close()

    # --- both worlds

    def at(self, ms: int) -> datetime:
        return self.start + timedelta(milliseconds=ms)

    def _set_clock(self) -> None:
        self._clock.close()
        self._clock.enter_context(clock.set_to(self.at(self.model.now)))

    def both(self, expected: Callable[[], Any], call: Callable[[], T]) -> tuple[Any, T | None]:
        """Ask both; either both answer or both refuse with the same code (and reasons)."""
        wanted = _outcome(expected)
        answer = _outcome(call)
        if isinstance(answer, Refusal):
            raise answer
        if isinstance(wanted, Refusal) or isinstance(answer, DomainError):
            assert isinstance(wanted, Refusal), f"must not be refused: {answer}"
            assert isinstance(answer, DomainError), f"{wanted} was due: {answer!r}"
            # As the edge of an operation does, which stands in no transaction of others.
            refusals.keep(answer)
            # Where nobody was named, they are those of all workers, with their counts.
            is_of_one = answer.code == "MESH_PLACEMENT_DENIED"
            told = tuple(answer.facts["reasons"]) if is_of_one else ()
            assert (answer.code, told) == (wanted.code, wanted.reasons)
            return None, None
        return wanted, answer

    def as_process(self, process: Process, expected: Callable[[], Any]) -> Callable[[], Any]:
        """What a process that may have been displaced must be told."""

        def judged() -> Any:
            if process.is_displaced:
                raise Refusal("TOKEN_INVALID")
            return expected()

        return judged

    def process(self, number: int) -> Process:
        """Mostly one that is not displaced."""
        own = [each for each in self.processes if not each.is_displaced]
        pool = self.processes if number % 8 == 0 else own  # never with an odd number
        return pool[number % len(pool)]

    def work(self, number: int) -> Work:
        return self.model.works[number % len(self.model.works)]

    def shown(self, number: int) -> tuple[Process, Try]:
        """A process and the claim that it presents: mostly its own, mostly a live one."""
        live = [each for each in self.tries if each.is_live]
        pool = live if live and number % 4 else self.tries
        shown = pool[number % len(pool)]
        own = [each for each in self.processes if each.man is shown.worker]
        if number % 11 == 0:
            own = self.processes
        return (own[-1] if number % 5 else own[number % len(own)]), shown

    # --- setting out

    @initialize(
        concurrencies=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        works=st.lists(st.tuples(policies, timeouts, st.booleans()), min_size=2, max_size=4),
        begun=st.integers(0, 2),
    )
    def set_out(
        self,
        concurrencies: tuple[int, int],
        works: list[tuple[dict[str, Any], dict[str, int], bool]],
        begun: int,
    ) -> None:
        for name, zone, concurrency in zip(NAMES, "ab", concurrencies, strict=False):
            self.register(name, zone, concurrency, abandon=False, as_itself=True)
        self.everybody_beats()
        for policy, limits, is_hold in works:
            self.submit(0, 0, None, policy, limits, is_hold)
        for number in range(begun):
            self.begin(number, 1, None)

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

    # --- work

    @rule(
        priority=st.integers(0, 2),
        delay=st.sampled_from([0, 0, 0, 2_500]),
        zone=st.sampled_from([None, None, "a", "b"]),
        policy=policies,
        limits=timeouts,
        is_hold=st.booleans(),
        in_pool=st.booleans(),
        memory=st.sampled_from([0, 0, 40, 60]),
    )
    def submit(
        self,
        priority: int,
        delay: int,
        zone: str | None,
        policy: dict[str, Any],
        limits: dict[str, int],
        is_hold: bool = False,
        in_pool: bool = False,
        memory: int = 0,
    ) -> None:
        now = self.model.now
        number = len(self.model.works)
        made = intake.submit(
            caller=self.world.operator,
            submission=self.world.submission(
                priority=priority,
                retry_policy=policy,
                timeouts=limits,
                policy={
                    "required_labels": {"zone": zone} if zone else {},
                    "pool_id": POOL if in_pool else None,
                    "resources": {"memory_bytes": memory} if memory else {},
                },
                not_before=self.at(now + delay) if delay else None,
                lost_policy="hold" if is_hold else "requeue",
            ),
        ).workload
        work = Work(
            number,
            priority,
            now,
            now + delay,
            zone,
            policy,
            limits,
            made.workload_id,
            is_hold,
            in_pool,
            memory,
        )
        self.model.submit(work)

    @precondition(lambda self: self.model.works)
    @rule(number=some, extra=st.integers(0, 2))
    def intervene(self, number: int, extra: int) -> None:
        if extra:
            self.retry(number, extra)
        else:
            self.cancel(number)

    def cancel(self, number: int) -> None:
        work = self.work(number)
        self.both(
            lambda: self.model.cancel(work),
            lambda: workloads.cancel(caller=self.world.operator, workload_id=work.workload_id),
        )

    def retry(self, number: int, extra: int) -> None:
        dead = [each for each in self.model.works if each.state == "DEAD_LETTER"]
        work = dead[number % len(dead)] if dead and number % 4 else self.work(number)
        self.both(
            lambda: self.model.retry(work, extra),
            lambda: workloads.retry(
                caller=self.world.operator, workload_id=work.workload_id, extra_attempts=extra
            ),
        )

    @precondition(lambda self: self.model.works)
    @rule(
        number=some,
        what=st.sampled_from(
            ["reclaim", "reclaim", "succeeded", "failed", "cancelled", "requeue", "requeue"]
        ),
    )
    def speak(self, number: int, what: str) -> None:
        """A person takes work from its worker, or says what became of held work."""
        states = {"CLAIMED", "RUNNING", "CHECKPOINTED"} if what == "reclaim" else {"HELD"}
        fit = [each for each in self.model.works if each.state in states]
        work = fit[number % len(fit)] if fit and number % 4 else self.work(number)
        said: dict[str, Any] = {
            "caller": self.world.operator,
            "workload_id": work.workload_id,
            "reason": "why",
        }
        if what == "reclaim":
            self.both(lambda: self.model.reclaim(work), lambda: resolutions.reclaim(**said))
        else:
            self.both(
                lambda: self.model.resolve(work, what),
                lambda: resolutions.resolve(resolution=what, **said),
            )

    @rule(numbers=st.sets(some, max_size=2), limit=st.sampled_from([None, 1, 2, 2]))
    def gather(self, numbers: set[int], limit: int | None) -> None:
        """Make the pool, change it, or take it away when nobody is to be in it."""
        known = list(self.model.workers.values())
        members = {known[each % len(known)] for each in numbers} if known else set()
        said: dict[str, Any] = {"caller": self.world.operator, "pool_id": POOL}
        content = pools.Change(
            name="pool",
            worker_ids=[each.worker_id for each in members],
            max_concurrency=limit,
        )
        if self.model.pool is None:
            pools.create(**said, application=self.world.application, content=content)
        elif members:
            pools.change(**said, change=content)
        else:
            pools.delete(**said)
        is_gone = self.model.pool is not None and not members
        self.model.pool, self.model.limit = (None, None) if is_gone else (members, limit)

    # --- claims

    @rule(number=some, maximum=st.integers(1, 3), lease_ms=lengths)
    def claim(self, number: int, maximum: int, lease_ms: int | None) -> None:
        process = self.process(number)
        before = set(self._every_try())
        wanted, answer = self.both(
            self.as_process(process, lambda: self.model.claim(process.man, maximum, lease_ms)),
            lambda: claims.claim(
                caller=process.caller,
                worker_id=process.man.worker_id,
                maximum=maximum,
                lease_ms=lease_ms,
            ),
        )
        if answer is None:
            return
        given, reason = wanted
        assert answer.reason == reason
        told = [(each.workload_id, each.fencing_token) for each in answer.claims]
        assert told == [(each.work.workload_id, each.token) for each in given]
        for each, claim in zip(given, answer.claims, strict=True):
            assert claim.expires_at == self.at(each.expires_at)
            latest = each.work.checkpoint
            assert (claim.checkpoint and claim.checkpoint[1]) == (latest and latest[2])
            if each not in before:
                self._learn(each, claim.claim_id)

    @precondition(lambda self: self.model.works)
    @rule(number=some, named=st.none() | some)
    def place(self, number: int, named: int | None) -> None:
        ready = [each for each in self.model.works if each.state == "READY"]
        work = ready[number % len(ready)] if ready and number % 4 else self.work(number)
        men = list(self.model.workers.values())
        man = None if named is None else men[named % len(men)]
        given, answer = self.both(
            lambda: self.model.place(work, man),
            lambda: placing.place(
                caller=self.world.operator,
                workload_id=work.workload_id,
                worker_id=None if man is None else man.worker_id,
            ),
        )
        if answer is not None:
            assert (answer.worker_id, answer.fencing_token) == (given.worker.worker_id, given.token)
            self._learn(given, answer.claim_id)

    @rule(number=some, maximum=st.integers(1, 3), lease_ms=lengths)
    def begin(self, number: int, maximum: int, lease_ms: int | None) -> None:
        """Claim and start what was given, as a worker does."""
        before = len(self.tries)
        self.claim(number, maximum, lease_ms)
        for each in self.tries[before:]:
            own = [p for p in self.processes if p.man is each.worker]
            self.say("start", own[-1], each, each.token)

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
                    self.retry(each.work.number, 1)
                self.wait(max(each.work.available_at - self.model.now, 0), True)
            self.work_agrees()

    def _every_try(self) -> list[Try]:
        return [each for work in self.model.works for each in work.tries]

    def _learn(self, given: Try, claim_id: str) -> None:
        given.claim_id = claim_id
        self.tries.append(given)

    # --- what a worker says of a claim

    def say(self, what: str, process: Process, shown: Try, token: int, **body: Any) -> None:
        """Present a claim with a token to both."""
        expected: Callable[..., Any] = getattr(self.model, what)
        call = getattr(leases if what in {"start", "renew", "checkpoint"} else settlement, what)
        told = {**body, "error": "x"} if what == "fail" else body
        self.both(
            self.as_process(process, lambda: expected(shown, process.man, token, **body)),
            lambda: call(
                caller=process.caller, claim_id=shown.claim_id, fencing_token=token, **told
            ),
        )

    @precondition(lambda self: self.tries)
    @rule(number=some, off=tokens, what=st.sampled_from(["start", "start", "renew"]), ms=lengths)
    def go_on(self, number: int, off: int, what: str, ms: int | None) -> None:
        process, shown = self.shown(number)
        body = {"lease_ms": ms} if what == "renew" else {}
        self.say(what, process, shown, shown.token + off, **body)

    @precondition(lambda self: self.tries)
    @rule(number=some, off=tokens, state=st.integers(1, 2), times=st.integers(1, 2))
    def checkpoint(self, number: int, off: int, state: int, times: int) -> None:
        process, shown = self.shown(number)
        for _ in range(times):
            self.say("checkpoint", process, shown, shown.token + off, state=state)

    @precondition(lambda self: self.tries)
    @rule(
        number=some,
        off=tokens,
        result_id=st.sampled_from("rrs"),
        output=st.sampled_from([1, 1, 2]),
        times=st.integers(1, 2),
    )
    def complete(self, number: int, off: int, result_id: str, output: int, times: int) -> None:
        process, shown = self.shown(number)
        for _ in range(times):
            self.say(
                "complete", process, shown, shown.token + off, result_id=result_id, output=output
            )

    @precondition(lambda self: self.tries)
    @rule(
        number=some,
        off=tokens,
        kind=kinds,
        no_effect=st.booleans(),
        times=st.integers(1, 2),
    )
    def fail(self, number: int, off: int, kind: str, no_effect: bool, times: int) -> None:
        process, shown = self.shown(number)
        for _ in range(times):
            self.say("fail", process, shown, shown.token + off, kind=kind, no_effect=no_effect)

    @precondition(lambda self: self.tries)
    @rule(
        number=some,
        off=tokens,
        what=st.sampled_from(["cancelled", "release"]),
        times=st.integers(1, 2),
    )
    def give_back(self, number: int, off: int, what: str, times: int) -> None:
        process, shown = self.shown(number)
        for _ in range(times):
            self.say(what, process, shown, shown.token + off)

    # --- workers

    @rule(
        name=st.sampled_from(NAMES),
        zone=st.sampled_from("ab"),
        concurrency=st.integers(1, 3),
        abandon=st.booleans(),
        as_itself=st.sampled_from([True, True, True, False]),
    )
    def register(
        self, name: str, zone: str, concurrency: int, abandon: bool, as_itself: bool
    ) -> None:
        said = Man(name, zone, concurrency, self.model.now)
        credential = self._credential(name) if as_itself else None
        registration = self.world.registration(
            name=name,
            grant=self.grant,
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
        if said.name not in self.model.workers:
            self.model.workers[said.name] = said
            return False
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

    # --- sweeps

    @rule(name=st.sampled_from(list(recovery.SWEEPS)))
    def one_sweep(self, name: str) -> None:
        self.sweep(name)

    def sweep(self, name: str) -> None:
        report = recovery.run(name)
        wanted = self.model.sweep(name)
        assert "failed" not in report.counts
        if name != "promote_due":
            assert len(report.changed) == len(set(report.changed))
            assert set(report.changed) == wanted

    @rule()
    def sweep_all(self) -> None:
        for name in recovery.SWEEPS:
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


def _outcome(call: Callable[[], T]) -> T | Refusal | DomainError:
    try:
        return call()
    except (Refusal, DomainError) as refusal:
        return refusal
