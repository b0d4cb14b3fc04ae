"""Defects in transactions that handlers share with their settlement."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from late.dispatcher.transactions.turn_queue import TurnQueue
from late.outbox.adapters import psycopg_statements
from late.scheduler.shared_settlements import SharedSettlements
from late.store.base import Fate
from tests.defects.components import replace
from tests.defects.defect import Defect

FIRST_WORLD = 720_000
"""Worlds from 700,000 on share transactions."""
ENDED_BY_SQL = (
    "tests/integration/test_shared_ended_by_sql.py::test_only_the_task_that_says_so_fails"
)


def substitute_tells_nothing() -> None:
    """The journal is asked whether it has the settlement, and nothing takes the place."""

    async def find_out(self: Any, parts: Any) -> Fate:
        part = parts[0][1]
        [result] = await self._settler.write([part.settlement])
        self._scheduler.settled(part.settlement, result)
        self._give_up(parts[1:])
        return Fate.COMMITTED if result.name == "SETTLED" else Fate.ROLLED_BACK

    replace(SharedSettlements, "_find_out", find_out)


def repeats_what_was_given_up() -> None:
    """An attempt whose time is over during the commit runs again after a rollback."""

    async def cancel(self: Any, turn: Any) -> Any:
        if not turn.committing:
            return await old(self, turn)
        await asyncio.wait([turn.ended])
        return turn.verdict if turn.recorded else None

    old = replace(TurnQueue, "cancel", cancel)


def ends_are_let_through() -> None:
    """COMMIT and ROLLBACK are statements like others."""
    replace(psycopg_statements, "_MAY_END", re.compile(r"(?!)"))


DEFECTS = (
    Defect(
        "place-not-taken", "after a lost answer the settlement is written without its effects",
        substitute_tells_nothing, "worlds", r"S2:", worlds=20, first=FIRST_WORLD,
    ),
    Defect(
        "repeat-given-up", "an attempt that timed out in its commit runs beside the next one",
        repeats_what_was_given_up, "worlds", r"S14:", worlds=4, first=700_120,
    ),
    Defect(
        "ended-by-sql", "a handler may end the transaction that it shares by a statement",
        ends_are_let_through, ENDED_BY_SQL + "[postgresql]", r"assert",
    ),
)  # fmt: skip
