"""The mark of order that PostgreSQL keeps with a task that has an ordering key: `committed_below`.

The log is read in the order of transaction ids. A transaction takes its id at its first write, so
its id may be lower than that of one which had committed before it inserted a task. The inserted
row says in its options below which id all of those are (`late.model.task.Options`), unless all are
below its own. The reader starts no task before it has read so far: `docs/design/0003`.
"""

from __future__ import annotations

from typing import Final

NO_BOUND: Final = 2**63 - 1
"""The `committed_below` of a task that waits for the end of the window in which it is read."""

# Only READ COMMITTED has a snapshot of the very statement.
_BELOW = f"""case current_setting('transaction_isolation') when 'read committed'
     then pg_snapshot_xmax(pg_current_snapshot()) else '{NO_BOUND}'::xid8 end"""


def in_order(options: str) -> str:
    """Return an expression: the text of `options`, a column, as an insert writes it."""
    return f"""case when strpos({options}, '"ordering_key":') = 0 then {options}
 else left({options}, -1) || coalesce(',"committed_below":' || nullif(greatest(
   {_BELOW}, pg_current_xact_id()), pg_current_xact_id())::text, '') || '}}' end"""


def moved(options: str) -> str:
    """Return the same for rows of many transactions that are given one id."""
    return f"""case when strpos({options}, '"ordering_key":') = 0 then {options}
 else left(regexp_replace({options}, ', ?"committed_below": ?[0-9]+', ''), -1)
      || ',"committed_below":{NO_BOUND}}}' end"""
