-- Gives claimable workloads to one locked worker, in one statement: pick, move, insert the attempts
-- and their events, and return all that the claims answer tells.
--
-- The picking is the one part that differs: `claim_next.sql` for a pull that counts slots alone,
-- `claim_chosen.sql` where the work was chosen before. It names the `candidates` and those of them
-- that could be `locked`; `seen` and `found` tell how many. Rows beyond `max_bytes` of input and
-- checkpoint together stay for the next call, but for the first `at_least`.
with {picking},
picked as (
    -- The uid of each attempt is made here, so that nothing below need be brought together by it.
    select id, gen_random_uuid() as uid from (
        select
            id,
            row_number() over in_order as place,
            sum(input_bytes + checkpoint_bytes) over in_order as bytes
        from locked
        window in_order as (order by priority desc, created_at, id)
    ) as summed
    where place <= %(at_least)s or bytes <= %(max_bytes)s
),
moved as (
    update mesh_workload as w set
        state = 'CLAIMED',
        claimable = false,
        fencing_token = w.fencing_token + 1,
        attempt_count = w.attempt_count + 1,
        event_sequence = w.event_sequence + 1,
        updated_at = %(at)s,
        deadline_at = w.overall_from + (w.timeouts ->> 'overall_ms')::bigint * interval '1 ms'
    from picked
    where w.id = picked.id
    returning w.*, picked.uid
),
tried as (
    insert into mesh_attempt (
        uid, workload_id, worker_id, incarnation, number, fencing_token, is_placed, status,
        pool_id, lease_ms, claimed_at, expires_at, heartbeat_timeout_ms, deadline_at,
        report_step, report_digest
    )
    select
        uid, id, %(worker)s, %(incarnation)s, attempt_count, fencing_token,
        %(is_placed)s, 'CLAIMED',
        (select r.pool_id from mesh_requirement r where r.id = moved.requirement_id),
        %(lease_ms)s, %(at)s,
        %(at)s::timestamptz + %(lease_ms)s * interval '1 ms',
        (timeouts ->> 'heartbeat_ms')::bigint,
        %(at)s::timestamptz + (timeouts ->> 'claim_ms')::bigint * interval '1 ms', '', ''
    from moved
),
told as (
    insert into mesh_workloadevent
        (workload_id, sequence, event, from_state, to_state, actor, at, evidence)
    select
        moved.id, moved.event_sequence, 'workload.claimed', 'READY', 'CLAIMED', %(actor)s, %(at)s,
        jsonb_build_object(
            'attempt_id', 'attempt_' || replace(moved.uid::text, '-', ''),
            'worker_id', %(worker_id)s::text,
            'fencing_token', moved.fencing_token,
            'lease_ms', %(lease_ms)s::integer,
            'placed', %(is_placed)s::boolean
        )
    from moved
)
select
    (select count(*) from candidates) as seen,
    (select count(*) from locked) as found,
    moved.input_bytes + moved.checkpoint_bytes as bytes,
    moved.requirement_id,
    moved.uid,
    moved.fencing_token,
    moved.attempt_count as number,
    %(at)s::timestamptz + %(lease_ms)s * interval '1 ms' as expires_at,
    moved.workload_id,
    moved.definition_id,
    moved.definition_revision,
    moved.input,
    moved.environment,
    moved.timeouts,
    moved.connection_scopes,
    moved.capability_snapshot,
    moved.lost_policy,
    latest.sequence as checkpoint_sequence,
    latest.state as checkpoint_state
from (select 1) as one
left join moved on true
left join lateral (
    select c.sequence, c.state from mesh_checkpoint c
    where c.workload_id = moved.id
    order by c.sequence desc
    limit 1
) as latest on true
order by moved.priority desc, moved.created_at, moved.id
