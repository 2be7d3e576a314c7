-- Writes what one transaction changed of any number of locked workloads, their attempts and the
-- worker that held them, with results and the events that tell of it, in one statement. Rows come
-- as JSON arrays; results as `json`, for an output is kept exactly as it was sent. Returns those of
-- the ended workloads that other work waits for.
--
-- The keys come apart as well: a plan that was made while the tables were small is kept, and would
-- go on to read them whole. By the keys they are read by their index, whatever the planner knows.
with moved as (
    update mesh_workload as w set
        state = c.state,
        claimable = c.claimable,
        held = c.held,
        open_dependencies = c.open_dependencies,
        dependents_pending = c.dependents_pending,
        available_at = c.available_at,
        ready_at = c.ready_at,
        fencing_token = c.fencing_token,
        attempt_count = c.attempt_count,
        started_attempts = c.started_attempts,
        extra_attempts = c.extra_attempts,
        retries = c.retries,
        unstarted_losses = c.unstarted_losses,
        event_sequence = c.event_sequence,
        checkpoint_bytes = c.checkpoint_bytes,
        last_failure = c.last_failure,
        cancel_requested_at = c.cancel_requested_at,
        overall_from = c.overall_from,
        deadline_at = c.deadline_at,
        ended_at = c.ended_at,
        updated_at = c.updated_at,
        sweep_after = c.sweep_after
    from jsonb_to_recordset(%(workloads)s::jsonb) as c (
        id bigint, state text, claimable boolean, held boolean, open_dependencies integer,
        dependents_pending boolean, available_at timestamptz, ready_at timestamptz,
        fencing_token bigint, attempt_count integer, started_attempts integer,
        extra_attempts integer, retries integer, unstarted_losses integer, event_sequence integer,
        checkpoint_bytes integer, last_failure jsonb, cancel_requested_at timestamptz, overall_from timestamptz,
        deadline_at timestamptz, ended_at timestamptz, updated_at timestamptz,
        sweep_after timestamptz
    )
    where w.id = c.id and w.id = any(%(workload_pks)s::bigint[])
),
tried as (
    update mesh_attempt as a set
        status = c.status,
        started_at = c.started_at,
        ended_at = c.ended_at,
        expires_at = c.expires_at,
        last_progress_at = c.last_progress_at,
        execution_deadline_at = c.execution_deadline_at,
        deadline_at = c.deadline_at,
        failure = c.failure,
        resource_usage = c.resource_usage,
        report_step = c.report_step,
        report_digest = c.report_digest
    from jsonb_to_recordset(%(attempts)s::jsonb) as c (
        id bigint, status text, started_at timestamptz, ended_at timestamptz,
        expires_at timestamptz, last_progress_at timestamptz, execution_deadline_at timestamptz,
        deadline_at timestamptz, failure jsonb, resource_usage jsonb, report_step text,
        report_digest text
    )
    where a.id = c.id and a.id = any(%(attempt_pks)s::bigint[])
),
stored as (
    insert into mesh_result (
        workload_id, attempt_id, result_id, digest, output, artifacts, logs, resource_usage,
        author, created_at
    )
    select
        workload_id, attempt_id, result_id, digest, output, artifacts, logs, resource_usage,
        author, created_at
    from json_to_recordset(%(results)s::json) as r (
        workload_id bigint, attempt_id bigint, result_id text, digest text, output json,
        artifacts jsonb, logs text, resource_usage jsonb, author text,
        created_at timestamptz
    )
),
held as (
    update mesh_worker as w set
        lifecycle = c.lifecycle,
        active = c.active,
        last_progress_at = c.last_progress_at,
        event_sequence = c.event_sequence
    from jsonb_to_recordset(%(workers)s::jsonb) as c (
        id bigint, lifecycle text, active integer, last_progress_at timestamptz,
        event_sequence bigint
    )
    where w.id = c.id
),
told as (
    insert into mesh_workloadevent
        (workload_id, sequence, event, from_state, to_state, actor, at, evidence)
    select workload_id, sequence, event, from_state, to_state, actor, at, evidence
    from jsonb_to_recordset(%(events)s::jsonb) as e (
        workload_id bigint, sequence integer, event text, from_state text, to_state text,
        actor text, at timestamptz, evidence jsonb
    )
)
select ended.id
from unnest(%(ended)s::bigint[]) as ended (id)
where exists (select from mesh_dependency d where d.depends_on_id = ended.id and d.is_open)
