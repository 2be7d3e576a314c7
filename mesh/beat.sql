-- The usual beat in one statement: a worker at its work lists exactly its live claims, and nothing
-- is to be told to it. Hears the worker and renews the claims. Where anything is out of the
-- ordinary it does nothing and answers no row, and `mesh.liveness` goes the long way.
with seen as materialized (
    select id, xmin as version from mesh_worker where id = %(worker)s
),
-- The statement sees claims as they were when it began, and they change under the worker's lock,
-- together with its row. So there is no waiting for that lock, and a worker whose row was written
-- since the beginning is left alone: what is seen here is what is true while the lock is held.
locked as materialized (
    select w.id, w.active, g.grant_id, g.expires_at, n.name as application
    from mesh_worker w
    join seen on seen.id = w.id and seen.version = w.xmin
    join mesh_grant g on g.id = w.grant_id
    join mesh_application n on n.id = w.application_id
    where w.removed_at is null
        and w.incarnation = coalesce(%(incarnation)s, w.incarnation)
        and w.version = %(version)s
        and w.capability_version = %(capability_version)s
        and w.concurrency = coalesce(%(concurrency)s, w.concurrency)
        and (w.reported_at is null or w.reported_at <= %(timestamp)s::timestamptz + %(leeway)s)
        and not w.is_unreconciled
        and w.lifecycle = case when w.active < w.concurrency then 'READY' else 'BUSY' end
        and w.drain_deadline_at is null
        and g.status <> 'REVOKED'
    for no key update of w skip locked
),
present as materialized (
    select locked.*, coalesce(%(fixed)s::timestamptz, clock_timestamp()) as at from locked
),
usual as materialized (
    select p.*
    from present p
    cross join lateral (
        select
            count(*) as number,
            bool_and(
                a.uid = any(%(uids)s::uuid[])
                and a.expires_at > p.at
                and w.state <> 'CANCELLATION_REQUESTED'
            ) as are_usual
        from mesh_attempt a join mesh_workload w on w.id = a.workload_id
        where a.worker_id = p.id and a.status in ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
    ) live
    where live.number = p.active
        and live.number = cardinality(%(uids)s::uuid[])
        and coalesce(live.are_usual, true)
),
renewed as (
    update mesh_attempt a set {renewal}
    from usual u
    where a.worker_id = u.id and a.status in ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
    returning a.uid, a.expires_at
)
update mesh_worker w set
    health = %(health)s,
    last_seen_at = u.at,
    -- A full worker does not ask for work; it is not deaf.
    last_poll_at = case when w.lifecycle = 'BUSY' then u.at else w.last_poll_at end,
    reported_at = least(%(timestamp)s::timestamptz, u.at),
    clock_skew_ms = round(extract(epoch from %(timestamp)s::timestamptz - u.at) * 1000)
from usual u
where w.id = u.id
returning {worker}, u.application, u.grant_id, u.expires_at, (
    -- In the order in which they were listed.
    select array_agg(expires_at order by array_position(%(uids)s::uuid[], uid)) from renewed
)
