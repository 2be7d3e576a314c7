-- Which of these waiting workers should ask for work again: there is something in their eligible
-- set, work of their application fell due or was placed on them, requirements changed, or they may
-- not take work any more. Nothing is locked: a claim decides, this only saves asking in vain.
with waiting as (
    select
        w.id,
        w.application_id,
        w.incarnation,
        coalesce(e.requirement_ids, '{}') as requirement_ids,
        w.removed_at is not null
            or w.is_unreconciled
            or w.lifecycle not in ('READY', 'BUSY')
            or g.status = 'REVOKED'
            or g.expires_at <= clock_timestamp()
            or e.epoch is distinct from a.requirement_epoch
            or e.upto_number is distinct from a.requirement_number
            or exists (
                select 1 from mesh_attempt t
                where t.worker_id = w.id and t.status = 'CLAIMED' and t.is_placed
            ) as is_changed
    from mesh_worker w
    join mesh_grant g on g.id = w.grant_id
    join mesh_application a on a.id = w.application_id
    left join mesh_eligibleset e on e.worker_id = w.id
    where w.id = any(%(workers)s)
),
stocked as (
    select coalesce(array_agg(r.id), '{}') as ids
    from (select distinct unnest(requirement_ids) as id from waiting) as r
    where exists (select 1 from mesh_workload l where l.requirement_id = r.id and l.claimable)
),
due as (
    select coalesce(array_agg(a.id), '{}') as ids
    from (select distinct application_id as id from waiting) as a
    where exists (
        select 1 from mesh_workload l
        where l.application_id = a.id
            and l.state = 'READY' and not l.claimable and not l.held and l.open_dependencies = 0
            and l.available_at <= clock_timestamp()
    )
)
select
    waiting.id,
    waiting.incarnation,
    waiting.application_id,
    waiting.requirement_ids,
    waiting.is_changed
        or waiting.requirement_ids && stocked.ids
        or waiting.application_id = any(due.ids) as is_worth_asking
from waiting cross join stocked cross join due
