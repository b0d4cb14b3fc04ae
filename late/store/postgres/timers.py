"""The query of parked tasks; CockroachDB uses the same statements."""

from __future__ import annotations

from collections.abc import Sequence

from late.model.task import ShardId, TaskId
from late.store.postgres import statements as sql
from late.store.postgres.cursor import FIRST_ID


def due_query(
    group: str,
    shard_id: ShardId,
    until_us: int,
    limit: int,
    after: tuple[int, str],
    held_key: str | None,
    task_ids: Sequence[TaskId],
) -> tuple[str, dict[str, object]]:
    """Return the statement of `Store.due` and its parameters; `parked_of` reads its rows."""
    by_time = sql.DUE if held_key is None else sql.DUE_HELD
    return sql.DUE_OF if task_ids else by_time, {
        "group": group,
        "shard": shard_id,
        "until": until_us,
        "limit": limit,
        "after": after[0],
        "after_id": after[1] or FIRST_ID,
        "key": held_key,
        "ids": list(task_ids),
    }
