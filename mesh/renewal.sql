-- What a renewal sets, at the time {at}: the lease as long from then as it was claimed for, never
-- shorter. Of a started attempt this is a beat, which moves its heartbeat deadline (`least` skips
-- nulls).
expires_at = greatest(a.expires_at, {at} + a.lease_ms * interval '1 ms'),
deadline_at = case
    when a.started_at is null then a.deadline_at
    else least(a.execution_deadline_at, {at} + a.heartbeat_timeout_ms * interval '1 ms')
end
