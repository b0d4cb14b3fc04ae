"""Workers that are stopped (SIGSTOP) past their lease and go on: they change nothing any more, and
what they did in vain is counted where an operator sees it.

The journal is the witness: in each shard, in order of `seq`, no epoch may follow a higher one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from late.control import Control
from late.control.views import Owners
from tests.conformance.backends import Backend
from tests.databases import PRESENT
from tests.integration.kill_kit import commit, settled, until
from tests.integration.stall_app import app, count, linger
from tests.integration.stall_kit import StallFleet, done, zombies

TASKS, SLOTS = 60, 4


@pytest.fixture
def fleet(backend: Backend, url: str, tmp_path: Path) -> Iterator[StallFleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    # A heartbeat that waits its turn, on an emulator or a busy machine, must not look like a death.
    ttl_s = 8 if backend.emulated else 5
    made = StallFleet(url, folder, {"LATE_LEASE_TTL_S": str(ttl_s), "LATE_CONCURRENCY": str(SLOTS)})
    yield made
    for number in range(len(made.processes)):
        made.resume(number)
    made.close()


def own_everything(fleet: StallFleet, number: int) -> None:
    until(lambda: fleet.owned_by(number) == set(range(8)), fleet)


def owners(url: str) -> Owners:
    with Control(url) as control:
        return control.status.owners()


def lost(log: str) -> set[int]:
    """Return the shards of which a worker has learned that another one has them."""
    told = re.findall(r"event=(?:lease_lost|fenced) group=default shard=(\d+)", log)
    return {int(shard_id) for shard_id in told}


def test_a_paused_owner_changes_nothing_when_it_wakes(url: str, fleet: StallFleet) -> None:
    # Given an owner with every slot taken and a backlog
    fleet.start()
    own_everything(fleet, 0)
    commit(url, app, [linger.call(n, 10.0) for n in range(1, SLOTS + 1)])
    until(lambda: len(fleet.witnessed(0)) == SLOTS, fleet)
    commit(url, app, [count.call(1_000 + n) for n in range(TASKS)])
    # When it is stopped until a peer has taken over and finished all
    fleet.pause(0)
    before = fleet.witnessed(0)
    fleet.start()
    own_everything(fleet, 1)
    until(lambda: settled(url), fleet)
    epochs = {shard.shard_id: shard.epoch for shard in owners(url).shards}
    # And wakes with its handlers in the middle of their work
    fleet.resume(0)
    late = [-n for n in before if n > 0 and -n not in before]
    until(lambda: set(late) <= set(fleet.witnessed(0)), fleet)
    until(lambda: owners(url).late_total == len(late), fleet)
    # Then it has started nothing of what it had before, and no settlement of an old epoch got in
    assert [n for n in fleet.witnessed(0) if n > 0] == [n for n in before if n > 0]
    assert zombies(url) == []
    assert done(url) == SLOTS + TASKS, "each task has ended once"
    # And an operator sees who was refused, where, and who owns the shards since when
    found = owners(url)
    assert sum(shard.late for shard in found.shards) == found.late_total == len(late) > 0
    for shard in found.shards:
        assert shard.epoch >= epochs[shard.shard_id] >= 2
        assert len({term.owner for term in shard.history}) >= 2
    # It learns of each shard by its heartbeat or by a settlement, whichever comes first.
    shards = {shard.shard_id for shard in found.shards}
    until(lambda: lost(fleet.log(0)) == shards, fleet)
    assert fleet.stop() == [0, 0]


def test_a_settlement_that_was_begun_before_a_pause_is_refused_after_it(
    url: str, fleet: StallFleet
) -> None:
    """Stopped after it has begun to settle and before it commits: the narrowest place there is."""
    fleet.start()
    own_everything(fleet, 0)
    (fleet.folder / "stop-at-settle").touch()
    commit(url, app, [count.call(n) for n in range(1, TASKS + 1)])
    until(lambda: (fleet.folder / "stopped").exists(), fleet)
    fleet.wait_paused(0)
    ran = set(fleet.witnessed(0))
    assert ran, "it has run tasks and recorded none"
    fleet.start()
    own_everything(fleet, 1)
    until(lambda: settled(url), fleet)
    fleet.resume(0)
    until(lambda: owners(url).fenced_total >= 1, fleet)
    assert zombies(url) == []
    assert done(url) == TASKS, "each task has ended once, although some ran twice"
    assert {n for n, pids in fleet.starts().items() if len(pids) > 1} <= ran
    assert "event=fenced" in fleet.log(0)
    found = owners(url)
    assert sum(shard.fenced for shard in found.shards) == found.fenced_total
    assert fleet.stop() == [0, 0]


@pytest.mark.parametrize(
    "backend", [b for b in PRESENT if not b.emulated], ids=lambda backend: backend.name
)
def test_a_pause_while_a_settlement_waits_for_a_lock(
    backend: Backend, url: str, fleet: StallFleet
) -> None:
    """The database may carry out what it has got before the pause, but not after the takeover."""
    fleet.start()
    own_everything(fleet, 0)
    commit(url, app, [linger.call(n, 1.0) for n in range(1, SLOTS + 1)])
    until(lambda: len(fleet.witnessed(0)) == SLOTS, fleet)
    raw = backend.raw(url)
    try:
        # Given somebody whose open transaction has the next row of every journal
        raw.begin()
        raw.execute(
            "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch,"
            " owner, cursor, open, usage, settled_at_us)"
            " select consumer_group, shard_id, seq + 1, 'other', epoch,"
            " owner, cursor, open, usage, settled_at_us from late_settlement s where seq ="
            " (select max(seq) from late_settlement m where m.shard_id = s.shard_id)"
        )
        until(lambda: len(fleet.witnessed(0)) == 2 * SLOTS, fleet)
        fleet.pause(0)
        raw.rollback()
    finally:
        raw.close()
    fleet.start()
    own_everything(fleet, 1)
    until(lambda: settled(url), fleet)
    fleet.resume(0)
    until(lambda: "lease_lost" in fleet.log(0) or "event=fenced" in fleet.log(0), fleet)
    assert fleet.stop() == [0, 0]
    assert zombies(url) == []
    assert done(url) == SLOTS
