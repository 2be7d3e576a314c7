-- Ended work that some work still waits for though no flag says so: one page of the open
-- dependencies, from a random one on and around, so that every one has its turn.
with bounds as (
    select min(depends_on_id) as low, max(depends_on_id) as high from mesh_dependency where is_open
),
start as materialized (
    select low + floor(random() * (high - low + 1))::bigint as id from bounds
),
page as materialized (
    (
        select depends_on_id from mesh_dependency
        where is_open and depends_on_id >= (select id from start)
        order by depends_on_id
        limit %(page)s
    )
    union all
    (
        select depends_on_id from mesh_dependency
        where is_open and depends_on_id < (select id from start)
        order by depends_on_id
        limit %(page)s
    )
    limit %(page)s
)
select id from mesh_workload
where id = any(array(select distinct depends_on_id from page))
    and state in ('SUCCEEDED', 'CANCELLED', 'DEAD_LETTER')
    and not dependents_pending
order by id
