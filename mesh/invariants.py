"""What must be true of the whole database at any moment, and the rows for which it is not.

PostgreSQL's constraints and the rules in the domain keep these; this asks whether they did. Each
rule is one statement, so it sees one moment even while work goes on. Reads only, locks nothing.
Rules are about rows that are still there: retention leaves the last event of ended work, so a
history may begin with an end, and a worker's anywhere.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from django.db import connection, transaction

from .models import CLAIMED_STATES, ENDED_STATES, LIVE_ATTEMPT

MAX_ROWS: Final = 100

RULES: Final[Mapping[str, str]] = {
    "a_workload_has_at_most_one_live_attempt": """
        select w.workload_id, count(*) as live_attempts
          from mesh_attempt a join mesh_workload w on w.id = a.workload_id
         where a.status = any(%(live)s)
         group by w.workload_id having count(*) > 1
    """,
    "active_is_the_number_of_live_attempts": """
        select w.worker_id, w.active, coalesce(a.live, 0) as live_attempts
          from mesh_worker w
          left join (select worker_id, count(*) as live from mesh_attempt
                      where status = any(%(live)s) group by worker_id) a on a.worker_id = w.id
         where w.active <> coalesce(a.live, 0)
    """,
    "a_live_attempt_is_there_exactly_while_work_is_claimed": """
        select w.workload_id, w.state, a.id is not null as has_live_attempt
          from mesh_workload w
          left join mesh_attempt a on a.workload_id = w.id and a.status = any(%(live)s)
         where (a.id is not null) <> (w.state = any(%(claimed)s))
    """,
    "held_work_was_started_and_given_up_with_its_latest_attempt": """
        select w.workload_id, w.lost_policy, a.number, a.status, a.started_at
          from mesh_workload w
          left join mesh_attempt a on a.workload_id = w.id and a.number = w.attempt_count
         where w.state = 'HELD'
           and (w.lost_policy <> 'hold' or a.started_at is null
                or a.status not in ('WORKER_LOST', 'TIMED_OUT'))
    """,
    "fencing_tokens_rise_with_attempt_numbers": """
        select w.workload_id, a.number, a.fencing_token, a.before
          from (select workload_id, number, fencing_token,
                       lag(fencing_token) over (partition by workload_id order by number) as before
                  from mesh_attempt) a
          join mesh_workload w on w.id = a.workload_id
         where a.fencing_token <= a.before or a.fencing_token > w.fencing_token
    """,
    "attempts_are_counted": """
        select w.workload_id, w.attempt_count, w.started_attempts,
               coalesce(a.attempts, 0) as attempts, coalesce(a.started, 0) as started
          from mesh_workload w
          left join (select workload_id, count(*) as attempts, max(number) as last,
                            count(started_at) as started
                       from mesh_attempt group by workload_id) a on a.workload_id = w.id
         where w.attempt_count <> coalesce(a.attempts, 0)
            or w.attempt_count <> coalesce(a.last, 0)
            or w.started_attempts <> coalesce(a.started, 0)
    """,
    "work_succeeded_exactly_when_one_attempt_did": """
        select w.workload_id, w.state, coalesce(a.succeeded, 0) as succeeded_attempts
          from mesh_workload w
          left join (select workload_id, count(*) as succeeded from mesh_attempt
                      where status = 'SUCCEEDED' group by workload_id) a on a.workload_id = w.id
         where coalesce(a.succeeded, 0) <> (w.state = 'SUCCEEDED')::integer
    """,
    "a_result_is_there_exactly_when_work_succeeded": """
        select w.workload_id, w.state, r.result_id
          from mesh_workload w left join mesh_result r on r.workload_id = w.id
         where (r.id is not null) <> (w.state = 'SUCCEEDED')
    """,
    "work_has_an_end_exactly_when_it_ended": """
        select workload_id, state, ended_at from mesh_workload
         where (ended_at is not null) <> (state = any(%(ended)s))
    """,
    "workload_history_has_no_gap": """
        select w.workload_id, e.sequence, e.before
          from (select workload_id, sequence, to_state,
                       lag(sequence) over (partition by workload_id order by sequence) as before
                  from mesh_workloadevent) e
          join mesh_workload w on w.id = e.workload_id
         where e.sequence <> coalesce(e.before, e.sequence - 1) + 1
            or (e.before is null and e.sequence <> 1 and e.to_state <> all(%(ended)s))
    """,
    "workload_history_goes_from_state_to_state": """
        select w.workload_id, e.sequence, e.from_state, e.before
          from (select workload_id, sequence, from_state,
                       lag(to_state) over (partition by workload_id order by sequence) as before
                  from mesh_workloadevent) e
          join mesh_workload w on w.id = e.workload_id
         where e.from_state <> e.before
            or (e.before is null and e.sequence = 1 and e.from_state <> 'CREATED')
    """,
    "workload_history_ends_where_the_work_is": """
        select w.workload_id, w.state, w.event_sequence, e.sequence, e.to_state
          from mesh_workload w
          left join (select distinct on (workload_id) workload_id, sequence, to_state
                       from mesh_workloadevent
                      order by workload_id, sequence desc) e on e.workload_id = w.id
         where e.to_state is distinct from w.state
            or e.sequence is distinct from w.event_sequence
    """,
    "open_dependencies_are_counted": """
        select w.workload_id, w.open_dependencies, coalesce(d.open, 0) as open
          from mesh_workload w
          left join (select workload_id, count(*) as open from mesh_dependency
                      where is_open group by workload_id) d on d.workload_id = w.id
         where w.open_dependencies <> coalesce(d.open, 0)
    """,
    "blocked_work_is_at_rest": """
        select workload_id, state, claimable, open_dependencies from mesh_workload
         where open_dependencies > 0 and (claimable or state = any(%(claimed)s))
    """,
    "an_end_is_told_to_what_waits_for_it": """
        select o.workload_id, o.state, w.workload_id as dependent
          from mesh_dependency d
          join mesh_workload o on o.id = d.depends_on_id
          join mesh_workload w on w.id = d.workload_id
         where d.is_open and o.state = any(%(ended)s) and not o.dependents_pending
    """,
    # Not that a pool is within its limit: a limit may be lowered, and ends nothing.
    "attempts_count_against_the_pool_that_their_work_names": """
        select w.workload_id, a.number, a.pool_id, r.pool_id as named
          from mesh_attempt a
          join mesh_workload w on w.id = a.workload_id
          join mesh_requirement r on r.id = w.requirement_id
         where a.pool_id <> r.pool_id
    """,
    "members_of_pools_are_workers_of_their_application": """
        select p.pool_id, w.worker_id, w.removed_at
          from mesh_poolmember m
          join mesh_pool p on p.id = m.pool_id
          join mesh_worker w on w.id = m.worker_id
         where p.application_id <> w.application_id or p.tenant_id <> w.tenant_id
            or w.removed_at is not null
    """,
    "worker_history_has_no_gap": """
        select w.worker_id, e.sequence, e.before
          from (select worker_id, sequence,
                       lag(sequence) over (partition by worker_id order by sequence) as before
                  from mesh_workerevent) e
          join mesh_worker w on w.id = e.worker_id
         where e.sequence <> e.before + 1
    """,
}


# Of those who build on the mesh.
_others: Final[dict[str, str]] = {}


def also(rules: Mapping[str, str]) -> None:
    """Ask these rules too, in one statement each, whenever the invariants are checked."""
    _others.update(rules)


def every() -> Iterator[tuple[str, str]]:
    """All rules by name, those of others last."""
    return chain(RULES.items(), _others.items())


def broken() -> dict[str, list[dict[str, Any]]]:
    """The rules that are broken, each with at most `MAX_ROWS` of the rows that break it."""
    found = {name: _rows(sql) for name, sql in every()}
    return {name: rows for name, rows in found.items() if rows}


def _rows(sql: str) -> list[dict[str, Any]]:
    with transaction.atomic(), connection.cursor() as cursor:
        # It looks at every row there is, which may take longer than a request may.
        cursor.execute("set local statement_timeout = 0")
        cursor.execute(
            f"{sql} limit {MAX_ROWS}",
            {
                "live": sorted(LIVE_ATTEMPT),
                "claimed": sorted(CLAIMED_STATES),
                "ended": sorted(ENDED_STATES),
            },
        )
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
