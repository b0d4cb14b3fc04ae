"""The statements of heartbeats on PostgreSQL: few as a rule, and more where something is new."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from late.store.base import CHANGES, WorkerInfo
from late.store.postgres import membership
from late.store.postgres import statements as sql
from late.store.postgres.membership import SETTINGS_S, SHARDS_S, PostgresFleet

ME = WorkerInfo("me", "host:1", ("g",), version=CHANGES)
TTL_S = 5.0
NAMES = {
    sql.JOIN: "join", sql.FLEET: "fleet", sql.FLEET_SINCE: "fleet", sql.SHARDS: "shards",
    sql.BEATS[False, False]: "beat", sql.BEATS[False, True]: "beat with settings",
}  # fmt: skip


class Server:
    """A fleet of one worker; its clock is the one of the test."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.there = False
        """The worker has a row."""
        self.sent: list[str] = []

    async def execute(self, statement: str, *_: Any, **__: Any) -> Any:
        name = NAMES.get(statement, "")
        if name:
            self.sent.append(name)
        now_us = round(self.now_s * 1_000_000)
        end_us = now_us + round(TTL_S * 1_000_000)
        rows: list[Any] = []
        if name == "join":
            self.there = True
        elif name.startswith("beat"):
            beat = (now_us, end_us if self.there else None, 1, 1, None, None, None, "", ())
            rows = [(*beat, "7") if name != "beat" else beat]
        elif name == "fleet":
            workers = [("me", "host:1", '["g"]', "1.0", CHANGES, None, end_us)]
            rows = [(1, 1, 40, msgspec.json.encode(workers).decode(), None)]

        async def fetchall() -> list[Any]:
            return rows

        return SimpleNamespace(fetchall=fetchall)

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[None]:
        yield


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(membership, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


async def beats(fleet: PostgresFleet, server: Server, *pauses_s: float) -> list[list[str]]:
    """What each of some heartbeats sends, after these pauses."""
    sent = []
    for pause_s in pauses_s:
        server.now_s += pause_s
        server.sent = []
        seen = await fleet.heartbeat(server, ME, TTL_S)  # type: ignore[arg-type]
        assert [each.worker_id for each in seen.workers] == ["me"]
        assert seen.settings == "7"
        sent.append(server.sent)
    return sent


async def test_a_heartbeat_is_one_statement_and_asks_for_the_settings_now_and_then(
    server: Server,
) -> None:
    first, *more = await beats(PostgresFleet(), server, 0, 1, 1, SETTINGS_S / 2, SHARDS_S)
    assert first == ["join", "beat with settings", "shards", "fleet"]
    assert more == [["beat"], ["beat with settings"], ["beat"], ["beat with settings", "shards"]]


async def test_a_worker_whose_row_was_removed_writes_it_once(server: Server) -> None:
    fleet = PostgresFleet()
    await beats(fleet, server, 0)
    server.there = False
    back, after = await beats(fleet, server, TTL_S + 1, 1)
    assert back[:3] == ["beat with settings", "join", "beat with settings"]
    assert after == ["beat"]


@pytest.mark.parametrize(("ttl_s", "statement"), [(0.5, sql.HEARTBEAT), (0, sql.LEAVE)])
def test_only_a_lease_of_no_time_at_all_is_a_good_bye(ttl_s: float, statement: str) -> None:
    assert [sent for sent, _ in membership.beat(ME, ttl_s)] == [statement]
