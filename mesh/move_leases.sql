-- Has the live leases of locked workers end no sooner than the worker's heartbeat timeout from now.
-- For an outage of the sweeps also those that are over, each once per outage; for the brake only
-- those that are not over.
update mesh_attempt as a set
    expires_at = greatest(
        a.expires_at, %(at)s::timestamptz + w.heartbeat_timeout_ms * interval '1 ms'
    ),
    moved_for_outage = coalesce(%(outage)s::timestamptz, a.moved_for_outage)
from mesh_worker w
where w.id = a.worker_id
    and w.id = any(%(workers)s)
    and a.status in ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
    and case
        when %(outage)s::timestamptz is null then a.expires_at > %(at)s
        else a.moved_for_outage is distinct from %(outage)s::timestamptz
    end
