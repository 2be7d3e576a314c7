-- What a mesh that has been at work for months has beside its queue, on top of `fill.sql`: ten
-- workers for each one, ended work with its attempts, results and history, work under way of which
-- some is late, and the records of people and placements.
insert into mesh_attempt (
    uid, workload_id, worker_id, incarnation, number, fencing_token, is_placed, status, lease_ms,
    claimed_at, started_at, ended_at, expires_at, deadline_at, report_step, report_digest
)
select
    gen_random_uuid(), w.id, (select min(id) from mesh_worker) + w.id % 10000, 1, 1, 1, false,
    case w.state when 'RUNNING' then 'RUNNING' when 'SUCCEEDED' then 'SUCCEEDED' else 'FAILED' end,
    60000, w.created_at, w.created_at, w.ended_at,
    now() + (w.id % 3600 - 60) * interval '1 s',
    case when w.state = 'RUNNING' and w.id % 3 = 0
        then now() + (w.id % 7200 - 90) * interval '1 s' end,
    '', ''
from mesh_workload w where w.state <> 'READY';
insert into mesh_workloadevent
    (workload_id, sequence, event, from_state, to_state, actor, at, evidence)
select w.id, n, 'workload.' || told.name, told.came, told.went, 'service:bench', w.created_at, '{}'
from mesh_workload w
cross join (values
    (1, 'ready', 'CREATED', 'READY'), (2, 'claimed', 'READY', 'CLAIMED'),
    (3, 'started', 'CLAIMED', 'RUNNING'), (4, 'completed', 'RUNNING', 'SUCCEEDED')
) as told (n, name, came, went)
where n <= w.event_sequence;
insert into mesh_result (
    workload_id, attempt_id, result_id, digest, output, artifacts, logs, author, created_at
)
select w.id, a.id, 'r', 'none', 'null', '[]', '', '', w.ended_at
from mesh_workload w join mesh_attempt a on a.workload_id = w.id where w.state = 'SUCCEEDED';
insert into mesh_checkpoint (workload_id, attempt_id, sequence, state, digest, created_at)
select a.workload_id, a.id, 1, '{}', 'none', a.claimed_at
from mesh_attempt a where a.id % 5 = 0;
insert into mesh_workerevent
    (worker_id, sequence, event, from_state, to_state, actor, at, evidence)
select w.id, n, 'worker.ready', '', 'READY', 'service:bench',
    now() - case when w.id % 100 = 0 then 120 - n else 1 end * interval '1 day', '{}'
from mesh_worker w, generate_series(1, 20) as n;
update mesh_worker w set event_sequence = 20, active = held.number
from (
    select a.worker_id, count(*) as number from mesh_attempt a
    where a.status = 'RUNNING' group by a.worker_id
) as held
where held.worker_id = w.id;
insert into mesh_decision (workload_id, code, actor, at, considered, counts, candidates)
select w.id, 'MESH_NO_ELIGIBLE_WORKER', 'service:bench', w.created_at, 0, '{}', '[]'
from mesh_workload w where w.id % 10 = 0;
insert into mesh_dependency (workload_id, depends_on_id, required_state, is_open)
select w.id, w.id - 1, 'SUCCEEDED', false from mesh_workload w where w.id % 20 = 0;
insert into mesh_auditentry (tenant_id, actor, action, target, reason, code, evidence, at)
select tenant_id, 'human:vera', 'workload.cancelled', workload_id, '', '', '{}',
    now() - ((select max(id) from mesh_workload) - id) * interval '30 s'
from mesh_workload where id % 5 = 0 order by id
