-- The dead letters that one workload's end buried, directly or through others, and itself.
with recursive buried (id) as (
    select %(workload)s::bigint
    union
    select w.id
    from buried
    join mesh_dependency d on d.depends_on_id = buried.id and d.required_state = 'SUCCEEDED'
    join mesh_workload w on w.id = d.workload_id
    where w.state = 'DEAD_LETTER' and not w.sealed and w.last_failure ->> 'kind' = %(kind)s
)
select id from buried limit %(limit)s
