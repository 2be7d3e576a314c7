"""What must be true of runs at any moment, and the rows for which it is not.

The rules keep these, and partly PostgreSQL's constraints; this asks whether they did. Each is one
statement, asked with those of the mesh (`mesh.invariants`, which says what is passed to them).
Rules are about rows that are still there: retention removes a run whole, with its work.
"""

from collections.abc import Mapping
from typing import Final

# All blocks of runs: which run, from when to when.
_BLOCKS: Final = """
    select run_id, since, ended_at from workflows_userpause
    union all select run_id, since, ended_at from workflows_cancellationrequest
    union all select run_id, since, ended_at from workflows_controlfailure
    union all select run_id, since, ended_at from workflows_recoverybarrier
"""

RULES: Final[Mapping[str, str]] = {
    "active_attempts_are_those_without_outcome": """
        select r.run_id, r.active_attempts, coalesce(a.unsettled, 0) as unsettled
          from workflows_run r
          left join (select run_id, count(*) as unsettled from workflows_runattempt
                      where outcome is null group by run_id) a on a.run_id = r.id
         where r.active_attempts <> coalesce(a.unsettled, 0)
    """,
    "leases_belong_to_unsettled_attempts": """
        select r.run_id, l.resource, a.dispatch_identity, a.outcome
          from workflows_resourcelease l
          join workflows_run r on r.id = l.run_id
          join workflows_runattempt a on a.id = l.attempt_id
         where a.outcome is not null or a.run_id <> l.run_id
            or l.application_id <> r.application_id
    """,
    # That an attempt has no second one follows from the key, which is unique.
    "an_attempt_has_the_workload_of_its_key": """
        select r.run_id, a.dispatch_identity, w.workload_id, w.idempotency_key
          from workflows_runattempt a
          join workflows_run r on r.id = a.run_id
          join mesh_workload w on w.id = a.workload_id
         where w.idempotency_key <> 'run:' || a.dispatch_identity
            or w.application_id <> r.application_id or a.tenant_id <> r.tenant_id
    """,
    "settled_attempts_are_over_and_sealed": """
        select r.run_id, a.dispatch_identity, a.outcome, w.workload_id, w.state, w.sealed
          from workflows_runattempt a
          join workflows_run r on r.id = a.run_id
          join mesh_workload w on w.id = a.workload_id
         where (a.outcome is not null and not w.state = any(%(ended)s))
            or w.sealed <> (a.outcome is not null)
    """,
    "unsettled_work_is_held_exactly_while_its_run_is_blocked": f"""
        select r.run_id, a.dispatch_identity, w.workload_id, w.held
          from workflows_runattempt a
          join workflows_run r on r.id = a.run_id
          join mesh_workload w on w.id = a.workload_id
         where a.outcome is null
           and w.held <> exists (select 1 from ({_BLOCKS}) b
                                  where b.run_id = a.run_id and b.ended_at is null)
    """,  # noqa: S608  # our own words
    # A block begins once its work is locked, so a claim that came before it is older.
    "no_claim_is_issued_under_a_block": f"""
        select r.run_id, a.dispatch_identity, w.workload_id, t.number, t.claimed_at, b.since
          from ({_BLOCKS}) b
          join workflows_runattempt a on a.run_id = b.run_id
          join workflows_run r on r.id = a.run_id
          join mesh_workload w on w.id = a.workload_id
          join mesh_attempt t on t.workload_id = w.id
         where t.claimed_at > b.since and t.claimed_at < coalesce(b.ended_at, 'infinity')
    """,  # noqa: S608  # our own words
    # Each act of a person allows as many starts more as it was given; a report without effect one.
    "held_work_starts_once_unless_that_was_harmless_or_a_person_asked": """
        select r.run_id, w.workload_id, w.extra_attempts, count(*) as unexplained_starts
          from mesh_workload w
          join mesh_attempt t on t.workload_id = w.id and t.started_at is not null
          left join workflows_runattempt a on a.workload_id = w.id
          left join workflows_run r on r.id = a.run_id
         where w.lost_policy = 'hold'
           and coalesce((t.failure ->> 'no_effect')::boolean, false) is false
         group by r.run_id, w.id having count(*) > 1 + w.extra_attempts
    """,
    "a_dispatch_is_settled_at_most_once": """
        select r.run_id, a.dispatch_identity, a.rows, coalesce(e.settled, 0) as settled
          from (select run_id, dispatch_identity, count(*) as rows from workflows_runattempt
                 group by run_id, dispatch_identity) a
          join workflows_run r on r.id = a.run_id
          left join (select run_id, evidence ->> 'dispatch_identity' as dispatch_identity,
                            count(*) as settled
                       from workflows_runevent where event = 'run.attempt_settled'
                      group by 1, 2) e
            on e.run_id = a.run_id and e.dispatch_identity = a.dispatch_identity
         where a.rows > 1 or e.settled > 1
    """,
    "generations_rise_by_one_with_each_handoff": """
        select r.run_id, r.generation, h.handoffs, h.lowest, h.highest
          from workflows_run r
          left join (select run_id, count(*) as handoffs, min(generation) as lowest,
                            max(generation) as highest
                       from workflows_handoff group by run_id) h on h.run_id = r.id
         where coalesce(h.handoffs, 0) <> coalesce(r.generation, 1) - 1
            or h.lowest <> 2 or h.highest <> r.generation
    """,
    "a_stale_authority_admits_nothing": """
        select r.run_id, r.generation, a.dispatch_identity, a.generation as admitted_by, a.before
          from (select run_id, dispatch_identity, generation,
                       lag(generation) over (partition by run_id order by id) as before
                  from workflows_runattempt) a
          join workflows_run r on r.id = a.run_id
         where a.generation < a.before or a.generation > coalesce(r.generation, 0)
    """,
    "a_stale_authority_settles_nothing": """
        select r.run_id, e.sequence, e.generation, e.before
          from (select run_id, sequence, generation,
                       lag(generation) over (partition by run_id order by sequence) as before
                  from (select run_id, sequence,
                               (evidence #>> '{authority,generation}')::bigint as generation
                          from workflows_runevent
                         where event = 'run.attempt_settled') settled) e
          join workflows_run r on r.id = e.run_id
         where e.generation < e.before or e.generation > r.generation
    """,
    "a_barrier_belongs_to_the_authority": """
        select r.run_id, r.instance_id, r.generation, b.instance_id as owner
          from workflows_recoverybarrier b
          join workflows_run r on r.id = b.run_id
         where b.ended_at is null
           and (b.instance_id, b.target_artifact_id, b.generation)
               is distinct from (r.instance_id, r.target_artifact_id, r.generation)
    """,
    "nothing_is_left_of_an_ended_run": """
        select r.run_id, r.status, s.step, s.state
          from workflows_run r
          join workflows_activation s on s.run_id = r.id
         where r.status <> 'OPEN' and s.state in ('PENDING', 'READY', 'ACTIVE')
    """,
    "run_history_has_no_gap": """
        select r.run_id, r.event_sequence, e.events, e.last
          from workflows_run r
          left join (select run_id, count(*) as events, max(sequence) as last
                       from workflows_runevent group by run_id) e on e.run_id = r.id
         where r.event_sequence <> coalesce(e.events, 0)
            or r.event_sequence <> coalesce(e.last, 0)
    """,
}
