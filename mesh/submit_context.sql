-- What intake must know of each submission of a call, in the order in which they were sent: its
-- application, the limit of the tenant, what its key stands for already, and its requirement.
--
-- Requirements in use are kept from being put to rest until the transaction ends, which must insert
-- the work; the foreign key takes this very lock, but only at commit, which is too late.
with sent as (
    select application, idempotency_key, need, place
    from unnest(%(applications)s::text[], %(keys)s::text[], %(needs)s::text[])
        with ordinality as s (application, idempotency_key, need, place)
),
wanted as (
    select distinct a.id as application_id, sent.need
    from sent
    join mesh_application a on a.tenant_id = %(tenant)s and a.name = sent.application
),
pinned as materialized (
    select r.id, r.application_id, r.digest
    from wanted
    join mesh_requirement r on r.application_id = wanted.application_id and r.digest = wanted.need
    where r.number is not null
    for key share of r
)
select
    a.id as application_id,
    t.max_submissions_per_minute as per_minute,
    stored.id as stored_id,
    stored.workload_id as stored_as,
    stored.content_digest as stored_digest,
    pinned.id as requirement_id,
    coalesce(%(fixed)s::timestamptz, clock_timestamp()) as at
from sent
join mesh_tenant t on t.id = %(tenant)s
left join mesh_application a on a.tenant_id = t.id and a.name = sent.application
-- By its index, whatever the planner thinks of the number of keys.
left join lateral (
    select w.id, w.workload_id, w.content_digest
    from mesh_workload w
    where w.application_id = a.id and w.idempotency_key = sent.idempotency_key
    limit 1
) as stored on true
left join pinned on pinned.application_id = a.id and pinned.digest = sent.need
order by sent.place
