-- The most urgent claimable workloads of the given requirements, of each at most its cap, unlocked.
--
-- As in `claim_next.sql`, the first few rows of the ready index for each requirement are merged.
-- The inner limit is known to the planner, which else would not trust the index to be short.
select ready.id, ready.requirement_id
from unnest(%(requirements)s::bigint[], %(caps)s::integer[]) as given (requirement_id, cap)
cross join lateral (
    select * from (
        select w.id, w.requirement_id, w.priority, w.created_at
        from mesh_workload w
        where w.requirement_id = given.requirement_id and w.claimable
        order by w.priority desc, w.created_at, w.id
        limit %(look)s
    ) as first
    order by first.priority desc, first.created_at, first.id
    limit given.cap
) as ready
order by ready.priority desc, ready.created_at, ready.id
limit %(look)s
