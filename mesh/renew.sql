-- Renews listed live claims of one locked worker, each by the length it was claimed with, never
-- making a lease shorter. A lease that is over is renewed only while the sweeps are out. Of a
-- started attempt this is a beat, which moves its heartbeat deadline (`least` skips nulls).
update mesh_attempt set
    expires_at = greatest(expires_at, %(at)s::timestamptz + lease_ms * interval '1 ms'),
    deadline_at = case
        when started_at is null then deadline_at
        else least(
            execution_deadline_at,
            %(at)s::timestamptz + heartbeat_timeout_ms * interval '1 ms'
        )
    end
where worker_id = %(worker)s
    and status in ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
    and uid = any(%(uids)s::uuid[])
    and (expires_at > %(at)s or %(sweeps_are_out)s)
returning id, expires_at, deadline_at
