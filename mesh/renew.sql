-- Renews listed live claims of one locked worker (`renewal.sql`). A lease that is over is renewed
-- only while the sweeps are out.
update mesh_attempt a set {renewal}
where a.worker_id = %(worker)s
    and a.status in ('CLAIMED', 'RUNNING', 'CHECKPOINTED')
    and a.uid = any(%(uids)s::uuid[])
    and (a.expires_at > %(at)s or %(sweeps_are_out)s)
returning a.id, a.expires_at, a.deadline_at
