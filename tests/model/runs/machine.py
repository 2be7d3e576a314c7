"""Random calls to real runs and to the reference; after each step both must agree.

Two runs of one application reserve the same resources. Whoever acts is now and then stale, shows a
wrong token or none. Each call comes a moment after the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from mesh import invariants, tenancy
from mesh.models import Workload
from tests.factories import name
from tests.workflows.rows import step as stored_step
from workflows import (
    admission,
    cancellation,
    definitions,
    ending,
    resources,
    runs,
    settlement,
    steering,
)
from workflows.models import (
    CancellationRequest,
    ControlFailure,
    RecoveryBarrier,
    ResourceLease,
    RunAttempt,
    UserPause,
)
from workflows.models import (
    Run as RunRow,
)
from workflows.steps import Resource as RealResource

from .authority_rules import AuthorityRules, public
from .both import pick, real, some, who, whole
from .rows import ENDED_WORK, Attempt, Outcome, Owner, Plan, Resource, Row, Run
from .work_rules import RESOLUTIONS

RESOURCES: Sequence[Resource] = (
    ("x", "read", "application"),
    ("x", "read", "application"),
    ("x", "write", "application"),
    ("y", "read", "application"),
    ("y", "write", "application"),
    ("x", "read", "run"),
    ("x", "write", "run"),
)
steps = st.fixed_dictionaries(
    {
        "is_needed": st.booleans(),
        "resources": st.lists(
            st.sampled_from(RESOURCES), max_size=2, unique_by=lambda each: (each[0], each[2])
        ),
        "is_hold": st.booleans(),
        "tries": st.integers(1, 3),
        "deliveries": st.integers(1, 2),
        "goes_on": st.booleans(),
    }
)
flows = st.lists(steps, min_size=1, max_size=3)
outcomes = st.one_of(
    st.builds(
        Outcome,
        st.just("succeeded"),
        st.sampled_from([None, None, (None,), (1,), ({"pages": 2},)]),
    ),
    st.builds(Outcome, st.just("failed"), st.none(), st.booleans()),
    st.builds(Outcome, st.sampled_from(["cancelled", "not_started", "abandoned"])),
)


class RunMachine(AuthorityRules):
    # --- setting out

    @initialize(
        both_flows=st.tuples(flows, flows),
        concurrency=st.integers(1, 3),
        executions=st.sampled_from([3, 100, 100]),
        deadline=st.sampled_from([None, None, 90_000]),
        people=st.integers(1, 2),
        is_owned=st.booleans(),
        is_known=st.booleans(),
        begun=st.integers(0, 4),
    )
    def set_out(
        self,
        both_flows: tuple[list[dict[str, Any]], list[dict[str, Any]]],
        concurrency: int,
        executions: int,
        deadline: int | None,
        people: int,
        is_owned: bool,
        is_known: bool,
        begun: int,
    ) -> None:
        tenancy.create_tenant(
            name=self.world.tenant.name, applications=[], attestations=people, actor="system:test"
        )
        self.model.people = people
        first, second = both_flows
        if is_known:
            # Only one that is known before it gets a run is evidence about it.
            self._register("ant", 600_000)
            self._register("bee", 600_000)
        bee = Owner("coordinator:1.0", "bee", 1, "bee 1") if is_owned else None
        self.begin(first, Owner("coordinator:1.0", "ant", 1, "ant 1"), concurrency, 100, None)
        self.begin(second, bee, concurrency, executions, deadline)
        for number in range(begun):
            self.admit_due(number)
            self.go_on(number, 2, begun)

    @precondition(lambda self: any(run.status != "OPEN" for run in self.model.runs[-2:]))
    @rule(flow=flows, concurrency=st.integers(1, 2))
    def begin_another(self, flow: list[dict[str, Any]], concurrency: int) -> None:
        ant = Owner("coordinator:1.0", "ant", 1, "ant 1")
        self.begin(flow, ant, concurrency, 100, None)

    def begin(
        self,
        flow: list[dict[str, Any]],
        owner: Owner | None,
        concurrency: int,
        executions: int,
        deadline: int | None,
    ) -> None:
        plans = _plans(flow)
        definition, _ = definitions.store(
            caller=self.world.operator,
            application=self.world.application,
            definition_id=name("flow"),
            version=1,
            steps=[_stored(each) for each in plans],
        )
        rows = {e.step: Row(e, "PENDING" if e.needs else "READY") for e in plans}
        run = Run(name("run"), rows, owner, concurrency, executions, deadline)
        run.begun_as = {
            "application": self.world.application,
            "definition_id": definition.definition_id,
            "version": 1,
            "input": None,
            "limits": {
                "concurrency": concurrency,
                "step_executions": executions,
                "deadline": None if deadline is None else self.at(deadline),
            },
            "coordinator": "external",
            "authority": real(owner),
        }
        self._begin(run, run.begun_as, is_new=True)

    @rule(number=some, input_=st.sampled_from([None, None, 1]))
    def begin_again(self, number: int, input_: int | None) -> None:
        """The same run once more, or one of other content under its id."""
        run = self.run_of(number)
        self._begin(run, {**run.begun_as, "input": input_}, is_new=False)

    def _begin(self, run: Run, said: dict[str, Any], *, is_new: bool) -> None:
        _, done = self.both(
            lambda: self.model.begin(run, said), lambda: runs.start(**self.asked(run), **said)
        )
        assert done is None or done[1] is is_new

    # --- admissions

    @rule(
        number=some,
        by=who,
        step=st.sampled_from(["one", "one", "two", "three", "none"]),
        ahead=st.sampled_from([1, 1, 1, 1, 0, 2]),
        asked=st.sampled_from(["none", "none", "same", "other"]),
    )
    def admit(self, number: int, by: str, step: str, ahead: int, asked: str) -> None:
        run = self.run_of(number)
        row = run.rows.get(step)
        wanted = () if row is None else row.plan.resources
        given = {"none": None, "same": wanted, "other": [*wanted, ("z", "read", "run")]}[asked]
        tried = 1 if row is None else row.last + ahead
        self._admit(run, self.owner(run, by), step, tried, given)

    def _admit(
        self, run: Run, shown: Owner, step: str, tried: int, given: Sequence[Resource] | None
    ) -> None:
        known = set(run.attempts)
        made, done = self.both(
            lambda: self.model.admit(run, shown, step, tried, given),
            lambda: admission.admit(
                **self.asked(run),
                authority=whole(shown),
                step=step,
                attempt=tried,
                resources=None if given is None else [RealResource(*each) for each in given],
            ),
        )
        if done is None:
            return
        assert done.created is (made not in known)
        assert (run.owner is None) == (done.authority is None)
        assert done.authority is None or public(done.authority) == public(whole(run.owner))  # type: ignore[arg-type]
        if done.created:
            made.identity = done.attempt.dispatch_identity
            made.work.workload_id = done.attempt.workload.workload_id
        assert made.identity == done.attempt.dispatch_identity

    @rule(number=some)
    def admit_due(self, number: int) -> None:
        """By the authority, whatever of the run is due."""
        due = [
            (run, row)
            for run in self.model.runs
            for row in run.rows.values()
            if row.state == "READY" and run.owner is not None
        ]
        if due:
            run, row = pick(due, number)
            self._admit(run, self.owner(run, "current"), row.plan.step, row.last + 1, None)

    @rule(number=some, wanted=st.sampled_from(RESOURCES))
    def ask_for_a_resource(self, number: int, wanted: Resource) -> None:
        run = self.run_of(number)
        resource, access, scope = wanted
        is_taken, found = self.both(
            lambda: self.model.is_in_the_way(run, wanted),
            lambda: resources.conflicting_resource(
                **self.asked(run), resource=resource, access=access, scope=scope
            ),
        )
        assert (found is not None) == is_taken

    # --- settlements

    @precondition(lambda self: self.attempts())
    @rule(number=some, by=who, said=outcomes, is_foreign=st.sampled_from([False] * 9 + [True]))
    def settle(self, number: int, by: str, said: Outcome, is_foreign: bool) -> None:
        attempt = self.attempt(number)
        run = pick(self.model.runs, number) if is_foreign else attempt.run
        self._settle(run, self.owner(run, by), attempt, said)

    @precondition(lambda self: any(each.outcome for each in self.attempts()))
    @rule(number=some, by=who)
    def settle_again(self, number: int, by: str) -> None:
        attempt = pick([each for each in self.attempts() if each.outcome], number)
        assert attempt.outcome is not None
        self._settle(attempt.run, self.owner(attempt.run, by), attempt, attempt.outcome)

    def _settle(self, run: Run, shown: Owner, attempt: Attempt, said: Outcome) -> None:
        self.both(
            lambda: self.model.settle(run, shown, attempt, said),
            lambda: settlement.settle(
                **self.asked(run),
                authority=whole(shown),
                dispatch_identity=attempt.identity,
                outcome=settlement.Outcome(
                    said.kind,
                    output=said.output[0] if said.output else None,
                    has_output=said.output is not None,
                    message="it broke" if said.kind == "failed" else "",
                    retryable=said.is_retryable,
                    reason="nobody knows" if said.kind == "abandoned" else "",
                ),
            ),
        )

    # --- on and on

    @rule(number=some, good=st.integers(0, 3), times=st.integers(1, 6))
    def go_on(self, number: int, good: int, times: int) -> None:
        """What a coordinator, a worker and a person would do next, and once more."""
        run = self.run_of(number)
        if run.owner is None or run.status != "OPEN":
            return
        for _ in range(times):
            if run.unsettled:
                self._further(pick(run.unsettled, number), good, number)
            elif due := [each for each in run.rows.values() if each.state == "READY"]:
                row = pick(due, number)
                self._admit(run, run.owner, row.plan.step, row.last + 1, None)
            else:
                self._terminalize(run, run.owner)
            self.agree()

    def _further(self, attempt: Attempt, good: int, number: int) -> None:
        work, run = attempt.work, attempt.run
        if work.state in ENDED_WORK or (work.is_held and work.state == "READY"):
            assert run.owner is not None
            self._settle(run, run.owner, attempt, _proposal(attempt))
        elif work.state == "READY":
            self._place(work)
        elif work.state == "HELD":
            self._resolve(work, pick(RESOLUTIONS, number), None)
        elif work.state == "CLAIMED":
            self._start(work.claims[-1])
        elif good > 1:
            self._complete(work.claims[-1], None)
        elif good:
            self._fail(work.claims[-1], "broken", no_effect=True)
        else:
            self._steer_work(work, "reclaim")

    @rule(number=some, times=st.sampled_from([2, 2, 2, 2, 2, 22]))
    def never_start(self, number: int, times: int) -> None:
        run = self.run_of(number)
        due = [each for each in run.rows.values() if each.state == "READY"]
        if not due or run.owner is None:
            return
        row = pick(due, number)
        for _ in range(times):
            self._admit(run, run.owner, row.plan.step, row.last + 1, None)
            if row.state != "ACTIVE":
                break
            attempt = run.attempts[-1]
            self._settle(run, run.owner, attempt, Outcome("not_started"))

    # --- steering

    @rule(
        number=some,
        by=who,
        what=st.sampled_from(["pause", "resume", "resume", "clear", "clear", "fail", "cancel"]),
    )
    def steer(self, number: int, by: str, what: str) -> None:
        run = self.run_of(number)
        if what == "fail":
            self._fail_run(run, self.owner(run, by), f"broken-{number % 2}")
            return
        self._steer(run, self.shown(run, by, may_be_left_out=True), what)

    def _steer(self, run: Run, shown: Owner | None, what: str) -> None:
        asked = {**self.asked(run), "reason": "it must be", "authority": real(shown)}
        expected = getattr(self.model, what)
        call = cancellation.request if what == "cancel" else getattr(steering, what)
        self.both(lambda: expected(run, shown), lambda: call(**asked))

    def _fail_run(self, run: Run, shown: Owner, code: str) -> None:
        self.both(
            lambda: self.model.fail_run(run, shown, code),
            lambda: steering.fail(
                **self.asked(run), authority=whole(shown), code=code, message="it broke"
            ),
        )

    @rule(number=some, by=who)
    def terminalize(self, number: int, by: str) -> None:
        run = self.run_of(number)
        self._terminalize(run, self.owner(run, by))

    def _terminalize(self, run: Run, shown: Owner) -> None:
        self.both(
            lambda: self.model.terminalize(run, shown),
            lambda: ending.terminalize(**self.asked(run), authority=whole(shown)),
        )

    # --- what must be so after every step

    @invariant()
    def agree(self) -> None:
        self.runs_agree()
        self.attempts_agree()
        self.leases_agree()
        self.blocks_agree()
        # Many statements: not after each step, and always at the end.
        if self.model.now % 7 == 0:
            assert invariants.broken() == {}

    def runs_agree(self) -> None:
        found = RunRow.objects.filter(tenant=self.world.tenant).prefetch_related("activations")
        rows = {each.run_id: each for each in found}
        for run in self.model.runs:
            row = rows[run.run_id]
            said = (row.status, row.coordinator, row.active_attempts)
            assert said == (run.status, run.coordinator, len(run.unsettled))
            assert row.max_executions - row.executions == run.executions_left
            owner = None if row.generation is None else public(row)
            assert owner == (run.owner.public if run.owner else None)
            for step in row.activations.all():
                wanted = run.rows[step.step]
                told = (step.state, step.last_number, step.tries, step.unstarted, step.output)
                assert told == (
                    wanted.state,
                    wanted.last,
                    wanted.tries,
                    wanted.unstarted,
                    wanted.output,
                ), step.step

    def attempts_agree(self) -> None:
        found = RunAttempt.objects.filter(tenant=self.world.tenant).select_related("workload")
        rows = {each.dispatch_identity: each for each in found.defer("workload__input")}
        assert rows.keys() == {each.identity for each in self.attempts()}
        for attempt in self.attempts():
            row, work = rows[attempt.identity], attempt.work
            assert row.generation == attempt.generation
            assert row.outcome == (attempt.outcome.kind if attempt.outcome else None)
            state = row.workload.state
            flags = (row.workload.held, row.workload.sealed)
            assert (state, *flags) == (work.state, work.is_held, work.is_sealed)
        assert Workload.objects.filter(tenant=self.world.tenant).count() == len(rows)

    def leases_agree(self) -> None:
        found = ResourceLease.objects.filter(run__tenant=self.world.tenant)
        held = {
            (attempt.identity, *resource)
            for attempt in self.attempts()
            if attempt.outcome is None
            for resource in attempt.plan.resources
        }
        columns = ("attempt__dispatch_identity", "resource", "access", "scope")
        assert set(found.values_list(*columns)) == held

    def blocks_agree(self) -> None:
        blocks: dict[str, dict[str, Any]] = {each.run_id: {} for each in self.model.runs}
        mine = {"run__tenant": self.world.tenant, "ended_at": None}
        for pause in UserPause.objects.filter(**mine).select_related("run"):
            blocks[pause.run.run_id]["pause"] = True
        for request in CancellationRequest.objects.filter(**mine).select_related("run"):
            blocks[request.run.run_id]["cancellation"] = True
        for failure in ControlFailure.objects.filter(**mine).select_related("run"):
            blocks[failure.run.run_id]["failure"] = failure.code
        for barrier in RecoveryBarrier.objects.filter(**mine).select_related("run"):
            blocks[barrier.run.run_id]["barrier"] = public(barrier)
        assert blocks == {each.run_id: each.blocks for each in self.model.runs}


def _plans(flow: list[dict[str, Any]]) -> list[Plan]:
    plans: list[Plan] = []
    for step, said in zip(("one", "two", "three"), flow, strict=False):
        needs = (plans[-1].step,) if plans and said["is_needed"] else ()
        members = {key: said[key] for key in ("is_hold", "tries", "deliveries", "goes_on")}
        plans.append(Plan(step, needs, tuple(said["resources"]), **members))
    return plans


def _stored(plan: Plan) -> dict[str, Any]:
    return stored_step(
        plan.step,
        needs=list(plan.needs),
        resources=[
            {"resource": resource, "access": access, "scope": scope}
            for resource, access, scope in plan.resources
        ],
        effect="mutating" if plan.is_hold else "read_only",
        on_failure="continue" if plan.goes_on else "fail",
        retry={"max_attempts": plan.tries},
        delivery={
            "max_attempts": plan.deliveries,
            "initial_delay_ms": 0,
            "retry_on": ["timeout", "worker_failure"],
            "max_unstarted": 1_000,
        },
    )


def _proposal(attempt: Attempt) -> Outcome:
    """What agrees with the work."""
    work = attempt.work
    if work.state == "SUCCEEDED":
        return Outcome("succeeded")
    if work.state == "DEAD_LETTER":
        return Outcome("failed", None, not work.is_hold or work.had_no_effect)
    if work.is_given_up_by_a_person:
        return Outcome("abandoned")
    return Outcome("cancelled" if work.started else "not_started")
