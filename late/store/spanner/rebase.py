"""`late rebase` on Spanner: make a restored database one that workers may run on."""

from __future__ import annotations

import uuid
from typing import Any

from google.cloud.spanner_v1 import KeySet

from late.model.task import Epoch
from late.store.spanner.journal import CHECKPOINT
from late.store.spanner.row_codec import JOURNAL_COLUMNS

_OWNED = """
SELECT consumer_group, shard_id FROM late_lease
UNION DISTINCT SELECT consumer_group, shard_id FROM late_settlement
"""


def leases(database: Any) -> list[tuple[str, int]]:
    """Read every (group, shard) that was ever owned, also where somebody has removed its lease."""
    with database.snapshot() as snapshot:
        return [(group, shard_id) for group, shard_id in snapshot.execute_sql(_OWNED)]


def free(transaction: Any, group: str, shard_id: int) -> None:
    """Raise the epoch of a shard and free it. Idempotent."""
    where = {"group": group, "shard": shard_id}
    ((now_us, journal, found, _),) = transaction.execute_sql(CHECKPOINT, where)
    seq, last_epoch, cursor, open_json, _ = journal[0] if journal else (0, 0, "", "[]", None)
    granted = Epoch(max(found[0][1] if found else 0, last_epoch) + 1)
    # A takeover without an owner: the same checkpoint with the raised epoch fences the old owner.
    nobody = (group, shard_id, seq + 1, uuid.uuid4().hex, granted, "rebase", cursor, open_json)
    transaction.insert("late_settlement", JOURNAL_COLUMNS, [(*nobody, None, None, now_us)])
    row = (group, shard_id, None, granted)
    transaction.insert_or_update(
        "late_lease", ("consumer_group", "shard_id", "owner", "epoch"), [row]
    )


def adopt(transaction: Any, identity: str) -> None:
    """Forget the workers and claim the database: the last step of adopting a copy.

    Cursors stay: they are Spanner's own timestamps, and a restored copy continues these.
    """
    transaction.delete("late_worker", KeySet(all_=True))
    transaction.delete("late_offer", KeySet(all_=True))
    transaction.insert_or_update("late_meta", ("key", "value"), [("identity", identity)])
