-- What a claim by one locked worker must know, read after the lock: the time, the grant, how far
-- the worker's eligible set is worked out, whether more than slots must be counted. Up to 500 due rows of its application are promoted on
-- the way, so that work becomes claimable at the very boundary also when the sweep is late.
with clock as materialized (
    select coalesce(%(fixed)s::timestamptz, clock_timestamp()) as at
),
due as (
    update mesh_workload set claimable = true
    where id in (
        select id from mesh_workload
        where application_id = %(application)s
            and state = 'READY' and not claimable and not held and open_dependencies = 0
            and available_at <= (select at from clock)
        order by available_at
        limit 500
        for no key update skip locked
    )
)
select
    clock.at,
    g.status,
    g.expires_at,
    a.requirement_number,
    a.requirement_epoch,
    e.epoch,
    e.upto_number,
    cardinality(e.bounded_ids) > 0 as has_bounds,
    exists (
        select 1 from mesh_pause p
        where p.application_id = %(application)s
            and p.lifted_at is null and (p.until is null or p.until > clock.at)
    ) as has_pause,
    (select t.max_live_claims from mesh_tenant t where t.id = a.tenant_id) as max_live_claims,
    exists (
        select 1 from mesh_attempt t
        where t.worker_id = %(worker)s and t.status = 'CLAIMED' and t.is_placed
    ) as has_placed
from clock
cross join mesh_grant g
cross join mesh_application a
left join mesh_eligibleset e on e.worker_id = %(worker)s
where g.id = %(grant)s and a.id = %(application)s
