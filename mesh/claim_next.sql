-- Picks for `claim.sql`: the most urgent of all that the worker may take, up to `slots`.
--
-- Looks at requirements, not at workloads: for each requirement in the worker's eligible set the
-- first few rows of the ready index, merged in the order priority, creation, id. More candidates
-- are taken than slots, because neighbours skip each other's locked rows; `seen` tells whether it
-- is worth asking again. `for no key update` looks at a row again once it is locked, so what
-- another claim took is left out.
eligible as (
    select unnest(requirement_ids) as requirement_id
    from mesh_eligibleset
    where worker_id = %(worker)s
),
candidates as materialized (
    select ready.id, ready.priority, ready.created_at
    from eligible
    cross join lateral (
        select w.id, w.priority, w.created_at
        from mesh_workload w
        where w.requirement_id = eligible.requirement_id and w.claimable
        order by w.priority desc, w.created_at, w.id
        limit %(look)s
    ) as ready
    order by ready.priority desc, ready.created_at, ready.id
    limit %(look)s
),
locked as materialized (
    select w.id, w.priority, w.created_at, w.input_bytes, w.checkpoint_bytes
    from candidates c
    join mesh_workload w on w.id = c.id
    where w.claimable
    order by c.priority desc, c.created_at, c.id
    limit %(slots)s
    for no key update of w skip locked
)
