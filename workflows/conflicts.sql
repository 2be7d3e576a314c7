-- What is in the way of resources that an attempt would reserve: at most one row for each of them.
--
-- A lease is, where one of the two is a write, and it is of the same run, or both are of scope
-- `application` in the same application. Behind it (rank 1) a writer that was refused lately is, for
-- a read, under the same two conditions; but not behind one that came later than the asker, where
-- that one waits too: of two who wait for each other the first to come goes first.
--
-- Each branch reads by an index and stops at the first row, however many hold a resource.
with arrived as materialized (
    select min(first_asked_at) as at
    from workflows_refusedwriter
    where run_id = %(run)s and dispatch_identity = %(identity)s and asked_at > %(since)s
),
waiting as materialized (
    select r.*
    from workflows_refusedwriter r, arrived
    where r.application_id = %(application)s
      and r.resource = any(%(resources)s::text[])
      and r.asked_at > %(since)s
      and r.dispatch_identity <> %(identity)s
      and (arrived.at is null or r.first_asked_at < arrived.at)
)
select wanted.resource, wanted.access, wanted.scope, found.rank = 1 as is_waiting,
       run.run_id, coalesce(activation.step, '') as step, found.dispatch_identity
from unnest(%(resources)s::text[], %(accesses)s::text[], %(scopes)s::text[])
     as wanted(resource, access, scope)
cross join lateral (
    (select 0 as rank, l.run_id, a.activation_id, a.dispatch_identity
     from workflows_resourcelease l join workflows_runattempt a on a.id = l.attempt_id
     where l.run_id = %(run)s and l.resource = wanted.resource
       and 'write' in (wanted.access, l.access)
     limit 1)
    union all
    (select 0, l.run_id, a.activation_id, a.dispatch_identity
     from workflows_resourcelease l join workflows_runattempt a on a.id = l.attempt_id
     where l.application_id = %(application)s and l.resource = wanted.resource
       and l.scope = 'application' and wanted.scope = 'application' and l.access = 'write'
     limit 1)
    union all
    (select 0, l.run_id, a.activation_id, a.dispatch_identity
     from workflows_resourcelease l join workflows_runattempt a on a.id = l.attempt_id
     where l.application_id = %(application)s and l.resource = wanted.resource
       and l.scope = 'application' and wanted.scope = 'application' and wanted.access = 'write'
     limit 1)
    union all
    (select 1, r.run_id, null, r.dispatch_identity
     from waiting r
     where wanted.access = 'read' and r.resource = wanted.resource
       and (r.run_id = %(run)s or (r.scope = 'application' and wanted.scope = 'application'))
     order by r.first_asked_at, r.id
     limit 1)
    order by rank
    limit 1
) found
join workflows_run run on run.id = found.run_id
left join workflows_activation activation on activation.id = found.activation_id
order by found.rank, wanted.resource, wanted.scope
