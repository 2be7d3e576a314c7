-- Revokes the grants with these keys and all that were derived from them, at any depth; those that
-- were revoked before keep who did it and why.
with recursive concerned as (
    select id from mesh_grant where id = any(%(grants)s)
    union
    select g.id from mesh_grant g join concerned c on g.parent_id = c.id
)
update mesh_grant set
    status = 'REVOKED',
    revoked_at = %(at)s,
    revoked_by = %(by)s,
    revoke_reason = %(reason)s,
    drains_pending = true
where id in (select id from concerned) and status <> 'REVOKED'
