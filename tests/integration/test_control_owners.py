"""`late status --owners`: terms from the journal, refusals as the workers add them up."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from late.control import Control
from late.control.status.owners import Refused
from late.errors import ConfigError
from late.model.task import ShardId
from late.store import open_store
from late.store.base import Store
from tests.conformance.kit import own, task, worker
from tests.integration.control_kit import insert


def late(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "late.cli", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


async def test_each_owner_has_a_term_and_the_last_one_has_the_shard(url: str, store: Store) -> None:
    insert(url, task(3), task(3))
    # Given an owner who settles twice, is gone, and one who takes over
    first = await own(store, 3)
    for _ in range(2):
        await first.settle()
    await store.heartbeat(worker("w1"), 0)
    second = await own(store, 3, name="w2")
    await second.settle()
    with Control(url) as control:
        found = control.status.owners()
        assert [each.shard_id for each in found.shards] == list(range(8))
        shard = found.shards[3]
        assert (shard.group, shard.owner, shard.owner_live) == ("default", "w2", True)
        assert (shard.epoch, shard.fenced, shard.late) == (second.lease.epoch, 0, 0)
        assert [(t.epoch, t.owner, t.settlements, t.cut) for t in shard.history] == [
            (second.lease.epoch, "w2", 2, False),
            (first.lease.epoch, "w1", 3, False),
        ]
        now, before = shard.history
        assert before.first_us <= before.last_us <= now.first_us <= now.last_us <= found.now_us
        assert shard.since_us == now.first_us
        # When only the last settlement is looked at, then nobody claims to know more
        [only] = control.status.owners(limit=1).shards[3].history
        assert (only.epoch, only.settlements, only.cut) == (second.lease.epoch, 1, True)
        assert control.status.owners(limit=1).shards[3].since_us is None
        # When it is given back, then there is no owner, and history stays
        await store.release([second.lease])
        shard = control.status.owners().shards[3]
        assert (shard.owner, shard.owner_live, shard.since_us) == (None, False, None)
        assert len(shard.history) == 2
        assert control.status.owners().shards[4].history == ()
        with pytest.raises(ConfigError):
            control.status.owners(limit=0)


async def test_what_was_refused_is_added_up_over_all_workers(url: str) -> None:
    with Control(url) as control:
        control.status.add_refused({("default", ShardId(3)): Refused(1, 2)})
        control.status.add_refused(
            {("default", ShardId(3)): Refused(1, 0), ("audit", ShardId(0)): Refused(0, 5)}
        )
        found = control.status.owners()
        assert (found.fenced_total, found.late_total) == (2, 7)
        assert (found.shards[3].fenced, found.shards[3].late) == (2, 2)
    # The rows beside those that guard the database are nobody's trouble.
    store = open_store(url)
    await store.open()
    await store.close()


async def test_the_command_shows_owners_and_history(url: str, store: Store) -> None:
    first = await own(store, 3)
    await first.settle()
    await store.heartbeat(worker("w1"), 0)
    with Control(url) as control:
        control.status.add_refused({("default", ShardId(3)): Refused(4, 9)})
    found = json.loads(late("status", url, "--owners", "--json"))
    assert found["fenced_total"] == 4
    assert found["shards"][3]["owner"] == "w1"
    assert found["shards"][3]["history"][0]["settlements"] == 2
    text = late("status", url, "--owners")
    assert "w1 (dead)" in text
    assert "History" in text
    assert "leave --queue out" in late("status", url, "--owners", "--queue", "x", code=2)
