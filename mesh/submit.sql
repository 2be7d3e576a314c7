-- Inserts new workloads with their first events and dependencies, in one statement. Keys are given in
-- the order of the call, which is the order in which equal work is claimed; rows go in sorted by
-- idempotency key, so that two calls with the same keys wait for each other and never crosswise.
-- A workload whose key was taken in this very moment is left out, which the caller sees.
with sent as materialized (
    select nextval('mesh_workload_id_seq'::regclass) as id, w.*
    from json_to_recordset(%(workloads)s::json) as w ({typed})
),
made as (
    insert into mesh_workload (id, {columns})
    select id, {columns} from sent order by application_id, idempotency_key
    on conflict do nothing
    returning id, workload_id
),
told as (
    insert into mesh_workloadevent
        (workload_id, sequence, event, from_state, to_state, actor, at, evidence)
    select made.id, e.sequence, e.event, e.from_state, e.to_state, e.actor, e.at, e.evidence
    from jsonb_to_recordset(%(events)s::jsonb) as e (
        workload text, sequence integer, event text, from_state text, to_state text, actor text,
        at timestamptz, evidence jsonb
    )
    join made on made.workload_id = e.workload
),
tied as (
    insert into mesh_dependency (workload_id, depends_on_id, required_state, is_open)
    select made.id, coalesce(d.depends_on_id, earlier.id), d.required_state, d.is_open
    from jsonb_to_recordset(%(dependencies)s::jsonb) as d (
        workload text, depends_on text, depends_on_id bigint, required_state text, is_open boolean
    )
    join made on made.workload_id = d.workload
    -- One that this very call makes.
    left join made as earlier on d.depends_on_id is null and earlier.workload_id = d.depends_on
    where d.depends_on_id is not null or earlier.id is not null
)
select id, workload_id from made
