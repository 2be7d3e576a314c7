-- How fast each of some workers claimed work of one requirement lately. For each of them its newest
-- claims, found by its own index; `since` is when the oldest of them was made, and `is_full` says
-- that there were more, so that only the time since then is known.
select
    count(*) filter (where l.requirement_id = %(requirement)s) as number,
    count(*) = %(newest)s as is_full,
    min(t.claimed_at) as since
from unnest(%(worker_ids)s::varchar[]) as named (worker_id)
join mesh_worker w on w.worker_id = named.worker_id
cross join lateral (
    select a.workload_id, a.claimed_at
    from mesh_attempt a
    where a.worker_id = w.id
    order by a.id desc
    limit %(newest)s
) as t
join mesh_workload l on l.id = t.workload_id
where t.claimed_at > %(since)s
group by w.id
