-- Goes on with the work that waits for ended work, in one statement: at most %(limit)s dependents in
-- the order of their keys, and of those only what nobody holds. The caller has locked the ended rows,
-- so no dependency on them is opened or closed by anybody else meanwhile.
--
-- A dependency that ended as required is closed; the last one that closes frees its dependent. One
-- that ended otherwise is closed too and buries its dependent, whose own dependents are left to the
-- sweep: one level per transaction. `dependents_pending` of the ended rows says whether more is left.
with ended as materialized (
    select id, workload_id, state, dependents_pending
    from mesh_workload
    where id = any(%(ended)s::bigint[]) and state in ('SUCCEEDED', 'CANCELLED', 'DEAD_LETTER')
),
waiting as materialized (
    select
        d.id,
        d.workload_id,
        ended.id as ended_id,
        case when d.required_state = 'SUCCEEDED' and ended.state <> 'SUCCEEDED'
            then ended.workload_id end as failed
    from ended
    cross join lateral (
        select id, workload_id, required_state
        from mesh_dependency
        where depends_on_id = ended.id and is_open
        order by workload_id
        -- One more than can be woken tells that more is left.
        limit %(limit)s + 1
    ) as d
),
locked as materialized (
    select
        id, state, held, open_dependencies, available_at, overall_from, timeouts
    from mesh_workload
    where id = any(array(select distinct workload_id from waiting)) and id <> all(%(ended)s::bigint[])
    order by id
    limit %(limit)s
    for no key update skip locked
),
judged as materialized (
    select
        locked.*,
        told.closing,
        told.failed,
        locked.state = 'READY' and told.failed is not null as is_buried,
        locked.state = 'READY' and told.failed is null
            and locked.open_dependencies = told.closing as is_unblocked
    from locked
    join (
        select workload_id, count(*) as closing, min(failed) as failed
        from waiting
        group by workload_id
    ) as told on told.workload_id = locked.id
),
closed as (
    update mesh_dependency as d set is_open = false
    from waiting join locked on locked.id = waiting.workload_id
    where d.id = waiting.id
),
moved as (
    update mesh_workload as w set
        open_dependencies = j.open_dependencies - j.closing,
        state = case when j.is_buried then 'DEAD_LETTER' else j.state end,
        claimable = j.is_unblocked and not j.held and j.available_at <= %(at)s,
        ready_at = case when j.is_unblocked then %(at)s else w.ready_at end,
        deadline_at = case
            when j.is_buried then null
            when j.is_unblocked and not j.held then least(
                j.overall_from + (j.timeouts ->> 'overall_ms')::bigint * interval '1 ms',
                greatest(%(at)s, j.available_at)
                    + (j.timeouts ->> 'queue_ms')::bigint * interval '1 ms'
            )
            else w.deadline_at
        end,
        last_failure = case when j.is_buried
            then jsonb_build_object('kind', %(kind)s::text, 'error', %(error)s::text || j.failed)
            else w.last_failure
        end,
        event_sequence = w.event_sequence + j.is_buried::integer,
        dependents_pending = case when j.is_buried
            then exists (select from mesh_dependency n where n.depends_on_id = w.id and n.is_open)
            else w.dependents_pending
        end,
        ended_at = case when j.is_buried then %(at)s else w.ended_at end,
        updated_at = case when j.state = 'READY' then %(at)s else w.updated_at end
    from judged as j
    where w.id = j.id
    returning w.id, w.workload_id, w.event_sequence, j.failed, j.is_buried, j.is_unblocked
),
told as (
    insert into mesh_workloadevent
        (workload_id, sequence, event, from_state, to_state, actor, at, evidence)
    select
        id, event_sequence, 'workload.dead_lettered', 'READY', 'DEAD_LETTER', %(actor)s, %(at)s,
        jsonb_build_object(
            'kind', %(kind)s::text, 'error', %(error)s::text || failed, 'dependency', failed
        )
    from moved
    where is_buried
),
remaining as (
    select
        ended.id,
        exists (
            select from waiting
            where ended_id = ended.id and not exists (select from locked where id = workload_id)
        ) as is_left
    from ended
),
flagged as (
    update mesh_workload as w set dependents_pending = remaining.is_left
    from remaining
    where w.id = remaining.id and w.dependents_pending <> remaining.is_left
)
select
    count(*) filter (where is_unblocked) as unblocked,
    count(*) filter (where is_buried) as buried,
    count(*) as touched,
    coalesce(
        array_agg(workload_id order by id) filter (where is_unblocked or is_buried), '{}'
    ) as changed,
    (select coalesce(bool_or(is_left), false) from remaining) as is_left
from moved
