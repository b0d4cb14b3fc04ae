"""Where a group begins to read: the statements that find a cursor for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import event, insert

from late.control.sql import positions
from late.schema.engine import make_engine, reading
from late.schema.tables import settlement
from tests.integration.control_kit import transaction
from tests.support import sqlite


def journal(shard_id: int, seq: int, owner: str = "w") -> dict[str, Any]:
    return {
        "consumer_group": "default", "shard_id": shard_id, "seq": seq, "owner": owner, "epoch": 1,
        "settlement_id": f"{shard_id}-{seq}", "cursor": str(seq), "open": "[]",
        "settled_at_us": seq * 10_000_000,
    }  # fmt: skip


def test_the_last_rebase_is_looked_for_once(tmp_path: Path) -> None:
    """Not for each row of the journal, as Spanner's emulator does within one statement."""
    url = sqlite.database(tmp_path / "queue.db")
    written = [journal(0, seq) for seq in range(1, 9)]
    written += [journal(1, 1), journal(1, 2, "rebase"), journal(1, 3), journal(2, 8)]
    with transaction(url) as connection:
        connection.execute(insert(settlement), written)
    engine, sent = make_engine(url), list[str]()
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2].lower()))
    try:
        with reading(engine) as connection:
            found = positions.before(connection, [0, 1, 2], 50_500_000, ["default"])
        assert found == {0: "4", 1: "3", 2: ""}
        with reading(engine) as connection:
            assert positions.before(connection, [1], 25_000_000, ["default"]) == {1: ""}
    finally:
        engine.dispose()
    asked = [each for each in sent if "late_settlement" in each]
    assert asked
    assert not [each for each in asked if "max(" in each and "settled_at_us" in each]
