-- The work of a heartbeat with ten claims, written by hand: one worker row and its ten leases.
\set worker random(901, 1000)
with beat as (
    update mesh_worker set last_seen_at = clock_timestamp(), reported_at = clock_timestamp(),
        clock_skew_ms = 0
    where worker_id = 'worker_' || :worker
    returning id
)
update mesh_attempt a set expires_at = clock_timestamp() + a.lease_ms * interval '1 ms'
from beat where a.worker_id = beat.id and a.status in ('CLAIMED', 'RUNNING', 'CHECKPOINTED');
