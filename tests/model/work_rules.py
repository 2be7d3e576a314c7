"""Rules about work: it is submitted, claimed, placed, reported, and steered by people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mesh import (
    claims,
    intake,
    pauses,
    placing,
    pools,
    resolutions,
    workloads,
)

from .both import some
from .rows import Man, Stop, Try, Work
from .worker_rules import WorkerRules

POOL: Final = "p"
# Mostly the token as it is, sometimes another one.
tokens = st.sampled_from([0, 0, 0, 0, 0, 1, -1])
lengths = st.sampled_from([None, None, 1_000, 20_000, 900_000])
kinds = st.sampled_from(["transient_connection", "timeout", "broken"])
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
# The first ones or the latest ones that there are; the same one perhaps twice.
required = st.sampled_from(["SUCCEEDED", "SUCCEEDED", "ANY_END"])
ties: st.SearchStrategy[list[tuple[int, str]]] = st.just([]) | st.lists(
    st.tuples(st.integers(-3, 3), required), max_size=3
)
POLICY: Final[dict[str, Any]] = {
    "max_attempts": 2,
    "initial_delay_ms": 1_000,
    "max_delay_ms": 300_000,
    "backoff": "exponential",
    "retry_on": ["timeout"],
    "max_unstarted": 4,
}


class WorkRules(WorkerRules):
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
        definition=st.sampled_from(["extract", "extract", "sort"]),
        waits=ties,
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
        definition: str = "extract",
        waits: Sequence[tuple[int, str]] = (),
    ) -> None:
        now = self.model.now
        number = len(self.model.works)
        needed = [(self.work(each), required) for each, required in waits if number]
        submission = self.world.submission(
            definition_id=definition,
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
            dependencies=[
                {"workload_id": other.workload_id, "required_state": required}
                for other, required in needed
            ],
        )
        work = Work(number, priority, now, now + delay, zone, policy, limits)
        work.is_hold, work.in_pool = is_hold, in_pool
        work.memory, work.definition = memory, definition
        _, made = self.both(
            lambda: self.model.submit(work, needed),
            lambda: intake.submit(caller=self.world.operator, submission=submission),
        )
        if made is not None:
            work.workload_id, work.pk = made.workload.workload_id, made.workload.pk

    @precondition(lambda self: self.model.works)
    @rule(number=some, required=st.lists(required, min_size=1, max_size=3), limits=timeouts)
    def line_up(
        self,
        number: int,
        required: list[str],
        limits: dict[str, int],
    ) -> None:
        """Work that waits for work that waits for some that is there, ended or not."""
        for place, each in enumerate(required):
            self.submit(0, 0, None, POLICY, limits, waits=[(-1 if place else number, each)])

    @precondition(lambda self: self.model.works)
    @rule(number=some, extra=st.integers(0, 2), dependents=st.booleans())
    def intervene(self, number: int, extra: int, dependents: bool) -> None:
        if extra:
            self.retry(number, extra, dependents)
        else:
            self.cancel(number)

    def cancel(self, number: int) -> None:
        work = self.work(number)
        self.both(
            lambda: self.model.cancel(work),
            lambda: workloads.cancel(caller=self.world.operator, workload_id=work.workload_id),
        )

    def retry(self, number: int, extra: int, dependents: bool) -> None:
        dead = [each for each in self.model.works if each.state == "DEAD_LETTER"]
        work = dead[number % len(dead)] if dead and number % 4 else self.work(number)
        self._retry(work, extra, dependents)

    def _retry(self, work: Work, extra: int, dependents: bool) -> None:
        self.both(
            lambda: self.model.retry(work, extra, dependents=dependents),
            lambda: workloads.retry(
                caller=self.world.operator,
                workload_id=work.workload_id,
                extra_attempts=extra,
                dependents=dependents,
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

    @rule(
        number=some,
        definition=st.sampled_from([None, "extract", "sort"]),
        length=st.sampled_from([None, 3_000, 30_000]),
    )
    def pause(self, number: int, definition: str | None, length: int | None) -> None:
        """Pause work, or lift one of the pauses, whether it stands or not."""
        if self.model.stops and number % 2:
            stop = self.model.stops[number % len(self.model.stops)]
            self.both(
                lambda: self.model.lift(stop),
                lambda: pauses.lift(caller=self.world.operator, pause_id=stop.pause_id),
            )
            return
        until = None if length is None else self.model.now + length
        made = self.world.pause(
            definition_id=definition, until=None if until is None else self.at(until)
        )
        self.model.stops.append(Stop(definition, until, made.pause_id))

    @precondition(lambda self: self.model.works)
    @rule(number=some)
    def hold(self, number: int) -> None:
        """As the run of the work does; what was held it lets go."""
        held = [each for each in self.model.works if each.is_held_back]
        if held and number % 2:
            work = held[number % len(held)]
            workloads.unhold([work.pk])
            self.model.unhold(work)
        else:
            work = self.work(number)
            workloads.hold([work.pk])
            work.is_held_back = True

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
        self._place(work, None if named is None else men[named % len(men)])

    def _place(self, work: Work, man: Man | None) -> None:
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

    def _every_try(self) -> list[Try]:
        return [each for work in self.model.works for each in work.tries]

    def _learn(self, given: Try, claim_id: str) -> None:
        given.claim_id = claim_id
        self.tries.append(given)

    # --- what a worker says of a claim

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
