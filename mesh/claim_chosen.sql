-- Picks for `claim.sql`: of each requirement no more than its quota, from the given workloads.
--
-- Work of one requirement needs the same, so any of it keeps within what was counted: a row that a
-- neighbour has locked is stood in for by the next one of its requirement.
candidates as materialized (
    select id, requirement_id, place
    from unnest(%(ids)s::bigint[], %(requirements)s::bigint[])
        with ordinality as given (id, requirement_id, place)
),
locked as materialized (
    select had.*
    from unnest(%(quota_of)s::bigint[], %(quotas)s::bigint[]) as quota (requirement_id, size)
    cross join lateral (
        select w.id, w.priority, w.created_at, w.input_bytes, w.checkpoint_bytes
        from candidates c
        join mesh_workload w on w.id = c.id
        where c.requirement_id = quota.requirement_id and w.claimable
        order by c.place
        limit quota.size
        for no key update of w skip locked
    ) as had
)
