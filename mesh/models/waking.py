"""Triggers that tell waiting workers of work which became claimable, whoever made it so.

They stand in the database because work becomes claimable in many statements: submit, retry,
release, the sweeps, an operator's SQL. A notification says `application requirement count`; it is
only a hint, and everybody who waits for it also looks by himself (`mesh.waiting`).

A commit that notifies holds a lock of the whole database for its length. So an insert is quiet
where enough work of its kind lies ready: nobody who may take it can be waiting then.
"""

from typing import Final

import pgtrigger

CHANNEL: Final = "fencepost_work"
# So much ready work of one requirement, its own included, makes a small insert quiet.
_PLENTY: Final = 32


def triggers() -> list[pgtrigger.Trigger]:
    """For `Workload`: one for inserts as a whole, one for each row that an update makes ready."""
    return [
        pgtrigger.Trigger(
            name="new_work_wakes",
            level=pgtrigger.Statement,
            when=pgtrigger.After,
            operation=pgtrigger.Insert,
            referencing=pgtrigger.Referencing(new="fresh"),
            func=f"""
                perform pg_notify(
                    '{CHANNEL}', concat_ws(' ', n.application_id, n.requirement_id, n.number)
                )
                from (
                    select application_id, requirement_id, count(*) as number
                    from fresh where claimable group by application_id, requirement_id
                ) as n
                where n.number >= {_PLENTY} or (
                    select count(*) from (
                        select 1 from mesh_workload as w
                        where w.requirement_id = n.requirement_id and w.claimable
                        limit {_PLENTY}
                    ) as ready
                ) < {_PLENTY};
                return null;
            """,  # noqa: S608 - our own numbers
        ),
        # Many rows of one requirement tell the same, which PostgreSQL sends once per transaction:
        # a worker that was woken and got all it asked for wakes the next.
        pgtrigger.Trigger(
            name="ready_work_wakes",
            level=pgtrigger.Row,
            when=pgtrigger.After,
            operation=pgtrigger.Update,
            condition=pgtrigger.Q(old__claimable=False, new__claimable=True),
            func=f"""
                perform pg_notify(
                    '{CHANNEL}', concat_ws(' ', new.application_id, new.requirement_id, 1)
                );
                return null;
            """,
        ),
    ]
