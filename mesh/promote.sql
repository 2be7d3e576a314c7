-- Makes a page of an application's due work claimable; rows that a call holds are left for later.
update mesh_workload set claimable = true
where id in (
    select id from mesh_workload
    where application_id = %(application)s
        and state = 'READY' and not claimable and not held and open_dependencies = 0
        and available_at <= coalesce(%(fixed)s::timestamptz, clock_timestamp())
    order by available_at
    limit %(page)s
    for no key update skip locked
)
returning workload_id
