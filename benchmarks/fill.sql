-- A mesh at work: 20 requirements, 1 000 ready workers and a queue of READY work.
insert into mesh_tenant (name) values ('bench');
insert into mesh_application (tenant_id, name, requirement_number, requirement_epoch)
select id, 'documents', 20, 0 from mesh_tenant where name = 'bench';
insert into mesh_grant (
    grant_id, tenant_id, application_id, subject, capabilities, resources, constraints, revision,
    token_digest, key_id, issued_at, not_before, expires_at, issued_by, status, revoked_by,
    revoke_reason, drains_pending
)
select
    'grant_bench', tenant_id, id, 'service:registrar', '{worker:register}', '[]', '{}', 1,
    'none', 'none', now(), now(), now() + interval '1 day', 'system:bench', 'ACTIVE', '', '', false
from mesh_application;
insert into mesh_requirement (
    application_id, digest, number, definition_id, capabilities, required_labels, affinity,
    anti_affinity
)
select a.id, 'digest-' || n, n, 'definition-' || n, '{}', '{}', '{}', '{}'
from mesh_application a, generate_series(1, 20) as n;
insert into mesh_worker (
    worker_id, tenant_id, application_id, name, runtime, version, contract_version,
    declared_capabilities, granted_capabilities, workload_kinds, resource_profile, labels,
    concurrency, heartbeat_interval_ms, heartbeat_timeout_ms, capability_version, incarnation,
    grant_id, credential_hash, registered_by, registered_at, lifecycle, health, is_unreconciled,
    active, last_seen_at, drain_cause, drain_reason, event_sequence
)
select
    'worker_' || n, a.tenant_id, a.id, 'worker-' || n, 'process', '1', 1, '{}', '{}', '{}', '{}',
    '{"zone": "a"}', 1000, 300000, 900000, 1, 1, g.id,
    encode(sha256(convert_to('fpw_bench_' || n, 'UTF8')), 'hex'), 'service:registrar', now(),
    'READY', 'HEALTHY', false, 0, now(), '', '', 1
from mesh_application a, mesh_grant g, generate_series(1, 1000) as n;
insert into mesh_eligibleset (worker_id, requirement_ids, epoch, upto_number)
select w.id, (select array_agg(id order by id) from mesh_requirement), 0, 20 from mesh_worker w;
insert into mesh_workload (
    workload_id, tenant_id, application_id, requirement_id, environment, definition_id,
    definition_revision, trigger, input, input_bytes, checkpoint_bytes, requested_by, session_id,
    grant_digest, capability_snapshot, connection_scopes, priority, idempotency_key,
    content_digest, retry_policy, timeouts, policy, lost_policy, created_at, updated_at, state,
    claimable, available_at, ready_at, fencing_token, attempt_count, started_attempts,
    extra_attempts, retries, unstarted_losses, event_sequence, overall_from
)
select
    'workload_' || n, r.tenant_id, r.application_id, r.id, 'production', r.definition_id, '1',
    'bench', '{"path": "a/b/c.pdf"}', 22, 0, 'service:bench', '', '', '{}', '{}', n % 5,
    'key-' || n, 'none',
    '{"max_attempts": 3, "initial_delay_ms": 1000, "max_delay_ms": 300000, "backoff": "exponential", "retry_on": [], "jitter": 0, "max_unstarted": 10}',
    '{"queue_ms": null, "claim_ms": null, "execution_ms": null, "heartbeat_ms": null, "overall_ms": null, "cancel_grace_ms": 60000}',
    '{}', 'requeue', s.at, s.at, 'READY', true, s.at, s.at, 0, 0, 0, 0, 0, 0, 1, s.at
from generate_series(1, {queued}) as n
join (
    select q.id, q.definition_id, q.application_id, a.tenant_id, q.number
    from mesh_requirement q join mesh_application a on a.id = q.application_id
) as r on r.number = 1 + n % 20
cross join lateral (select now() - n * interval '1 ms' as at) as s;
insert into mesh_workloadevent
    (workload_id, sequence, event, from_state, to_state, actor, at, evidence)
select id, 1, 'workload.ready', 'CREATED', 'READY', 'service:bench', created_at, '{}'
from mesh_workload
