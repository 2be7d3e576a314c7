-- Why each worker of an application may or may not take work of one requirement, all judged in one
-- pass: workers that fail the same tests stand in one row, with their number and the first of them.
--
-- The tests are those of `mesh.placement`, which judges single workers by facts that
-- `mesh.candidates` reads; a test holds both to the same answers. A pause is a matter of the work
-- and comes from outside. `fits` says that what the worker declares would be enough if nothing ran
-- on it; `last_poll_at` when one of them last asked.
with pool as materialized (
    select p.id, p.capabilities, p.required_labels, p.max_concurrency is not null and (
        select count(*) from (
            select 1
            from mesh_attempt t
            join mesh_worker v on v.id = t.worker_id
            where t.pool_id = p.pool_id and t.pool_id <> '' and v.application_id = p.application_id
                and t.status in ('CHECKPOINTED', 'CLAIMED', 'RUNNING')
            limit p.max_concurrency
        ) as live
    ) >= p.max_concurrency as is_full
    from mesh_pool p
    where p.application_id = %(application)s and p.pool_id = %(pool_id)s
),
needed as materialized (
    select key, value::bigint as amount from jsonb_each_text(%(resources)s::jsonb)
),
judged as materialized (
    select
        w.id,
        w.worker_id,
        w.last_poll_at,
        w.lifecycle not in ('READY', 'BUSY') or w.is_unreconciled as lifecycle,
        w.health <> 'HEALTHY' as health,
        w.active >= w.concurrency as capacity,
        not w.granted_capabilities @> %(capabilities)s::varchar[] as capability,
        w.workload_kinds <> '{}' and %(definition_id)s::varchar <> all(w.workload_kinds) as kind,
        not w.labels @> %(required_labels)s::jsonb as label,
        w.labels @> any(%(anti_affinity)s::jsonb[]) as anti_affinity,
        %(pool_id)s::varchar <> '' and not exists (
            select 1 from pool p
            join mesh_poolmember m on m.pool_id = p.id and m.worker_id = w.id
            where w.granted_capabilities @> p.capabilities and w.labels @> p.required_labels
        ) as pool,
        coalesce((select is_full from pool), false) as pool_capacity,
        exists (
            select 1 from needed n
            where n.amount > greatest(0, (w.resource_profile ->> n.key)::bigint - (
                select coalesce(sum((r.resources ->> n.key)::bigint), 0)
                from mesh_attempt t
                join mesh_workload l on l.id = t.workload_id
                join mesh_requirement r on r.id = l.requirement_id
                where t.worker_id = w.id and t.status in ('CHECKPOINTED', 'CLAIMED', 'RUNNING')
            )) and w.resource_profile ? n.key
        ) as resources,
        g.status = 'REVOKED' or g.expires_at <= %(at)s as "grant",
        not exists (
            select 1 from needed n where (w.resource_profile ->> n.key)::bigint < n.amount
        ) as fits
    from mesh_worker w
    join mesh_grant g on g.id = w.grant_id
    where w.application_id = %(application)s and w.removed_at is null
)
select
    -- One number to group by: the failed tests as bits, in the order of `survey.TESTS`.
    lifecycle::int + 2 * health::int + 4 * capacity::int + 8 * capability::int + 16 * kind::int
        + 32 * label::int + 64 * anti_affinity::int + 128 * pool::int + 256 * pool_capacity::int
        + 512 * resources::int + 1024 * "grant"::int as failed,
    fits,
    count(*) as number,
    max(last_poll_at) as last_poll_at,
    (array_agg(worker_id order by id))[:%(listed)s] as worker_ids
from judged
group by failed, fits
