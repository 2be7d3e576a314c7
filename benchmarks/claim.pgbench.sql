-- The work of a claim of :slots, written by hand as one statement: the same picking over 20
-- requirements, locks, attempts, events and worker row, on the same tables.
\set worker random(1, 900)
with holder as materialized (
    select id, worker_id, incarnation from mesh_worker
    where worker_id = 'worker_' || :worker
    for no key update
),
ready as materialized (
    (
        select top.id, top.priority, top.created_at
        from holder
        join mesh_eligibleset e on e.worker_id = holder.id
        cross join lateral unnest(e.requirement_ids) as requirement(id)
        cross join lateral (
            select w.id, w.priority, w.created_at from mesh_workload w
            where w.requirement_id = requirement.id and w.claimable
            order by w.priority desc, w.created_at, w.id
            limit 4 * :slots + 16
        ) as top
        order by top.priority desc, top.created_at, top.id
        limit 4 * :slots + 16
    )
),
picked as materialized (
    select w.id from ready r join mesh_workload w on w.id = r.id
    where w.claimable
    order by r.priority desc, r.created_at, r.id
    limit :slots
    for no key update of w skip locked
),
moved as (
    update mesh_workload w set
        state = 'CLAIMED', claimable = false, fencing_token = w.fencing_token + 1,
        attempt_count = w.attempt_count + 1, event_sequence = w.event_sequence + 1,
        updated_at = clock_timestamp()
    from picked where w.id = picked.id
    returning w.id, w.workload_id, w.fencing_token, w.attempt_count, w.event_sequence, w.input
),
tried as (
    insert into mesh_attempt (
        uid, workload_id, worker_id, incarnation, number, fencing_token, is_placed, status,
        lease_ms, claimed_at, expires_at, report_step, report_digest
    )
    select
        gen_random_uuid(), moved.id, holder.id, holder.incarnation, attempt_count, fencing_token,
        false, 'CLAIMED', 60000, clock_timestamp(), clock_timestamp() + interval '60 s', '', ''
    from moved cross join holder
    returning uid, workload_id
),
told as (
    insert into mesh_workloadevent
        (workload_id, sequence, event, from_state, to_state, actor, at, evidence)
    select
        moved.id, moved.event_sequence, 'workload.claimed', 'READY', 'CLAIMED',
        'worker:' || holder.worker_id, clock_timestamp(),
        jsonb_build_object('attempt_id', tried.uid, 'fencing_token', moved.fencing_token)
    from moved join tried on tried.workload_id = moved.id cross join holder
),
counted as (
    update mesh_worker w set
        active = w.active + (select count(*) from moved), last_poll_at = clock_timestamp()
    from holder where w.id = holder.id
)
select moved.workload_id, moved.input, tried.uid, moved.fencing_token
from moved join tried on tried.workload_id = moved.id;
