"""`--as-of`: what was seen live at four moments is what is told of them later."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from late.cli.main import app as cli
from late.control import Control, Filter
from late.control.past.moment import left_out
from late.control.verify.verify import Verified
from late.control.views import Count, Status, TaskView
from late.errors import ConfigError
from late.model.histogram import bucket
from late.model.ids import new_id
from late.model.task import ENQUEUED, Cursor, Record, ShardId, Usage
from late.store import open_store
from late.store.base import Store
from tests.conformance import kit
from tests.integration.control_kit import execute
from tests.integration.control_kit import insert as enqueue
from tests.support import sqlite

SHARD = ShardId(3)


class Seen(NamedTuple):
    """What was seen live at one moment."""

    at: str
    status: Status
    states: dict[str, str]
    """States of the tasks by their ids."""


class Life:
    """A shard that settles what it is told to, and is looked at in between."""

    def __init__(self, url: str, store: Store, owner: kit.Owner) -> None:
        self.url, self.store, self.owner = url, store, owner
        self.seen: list[Seen] = []
        self.records: list[Record] = []
        self.cursor = kit.BEGINNING
        self.done: Record
        self.letter: Record

    async def read(self, **count: int) -> tuple[list[Record], Cursor]:
        """Insert so many tasks of each queue, and read them."""
        made = [kit.task(SHARD, queue=queue) for queue, n in count.items() for _ in range(n)]
        for each in made:
            enqueue(self.url, each)
        found, self.cursor = await kit.read_all(self.store, made, cursor=self.cursor)
        self.records += found
        return found, self.cursor

    async def look(self) -> None:
        """Note what is seen now, with time between this and what comes before and after."""
        await kit.until(self.store, await self.store.now())
        with Control(self.url) as control:
            status = control.status.read()
            states = {each.task_id: state(control, each) for each in self.records}
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=status.now_us)
        self.seen.append(Seen(at.isoformat(), status, states))
        await kit.until(self.store, status.now_us)


def state(control: Control, task: Record, as_of: str | None = None) -> str:
    (group,) = control.tasks.show(task.task_id, as_of=as_of).groups
    return group.state


def counts(status: Status) -> dict[str, dict[str, str]]:
    fields = ("depth", "in_flight", "parked", "dead", "oldest_age_s")
    return {each.queue: {f: str(getattr(each, f)) for f in fields} for each in status.queues}


def shards(status: Status) -> list[Any]:
    return [
        (each.shard_id, each.seq, each.epoch, each.lag, each.lag_s, each.in_flight)
        for each in status.shards
        if each.shard_id == SHARD
    ]


def usage(queue: str, outcome: str, n: int) -> Usage:
    return Usage(queue, "count", "" if outcome == ENQUEUED else "local", outcome, n, n)


async def live(url: str) -> Life:
    """Live through four moments: tasks wait; some run and one is parked; one has died and another
    runs again; all of the first have ended, and others wait."""
    store = open_store(url)
    await store.open()
    life = Life(url, store, await kit.own(store, SHARD))
    owner = life.owner
    first, cursor = await life.read(bills=2, mail=2)
    await life.look()

    bill, life.done, mail, _ = first
    life.letter = bill
    due = await store.now() + 10**9
    await owner.settle(
        cursor=cursor,
        open=(kit.open_of(mail),),
        parked=(kit.parked(due, of=bill, reason="retry", attempts=1),),
        usage=(
            usage("bills", ENQUEUED, 2), usage("mail", ENQUEUED, 2),
            usage("bills", "done", 1), usage("mail", "done", 1), usage("bills", "retried", 1),
        ),
    )  # fmt: skip
    life.records = [bill, mail]  # of the others only a history would tell when they ended
    await life.look()

    await owner.settle(
        open=(),
        unparked=((due, bill.task_id),),
        dead=(kit.dead(of=bill),),
        parked=(kit.parked(due, of=mail, reason="retry", attempts=1),),
        usage=(usage("bills", "dead", 1), usage("mail", "retried", 1)),
    )
    await life.look()

    await life.read(mail=3)
    await life.look()
    return life


@pytest.fixture
async def life(url: str) -> AsyncIterator[Life]:
    made = await live(url)
    yield made
    await made.store.close()


async def test_what_was_seen_live_is_told_of_the_moment_later(life: Life) -> None:
    with Control(life.url) as control:
        for seen in life.seen:
            found = control.status.read(as_of=seen.at)
            assert found.as_of is not None
            assert found.now_us == found.as_of.at_us == seen.status.now_us
            assert counts(found) == counts(seen.status), seen.at
            assert shards(found) == shards(seen.status)
            for task in life.records:
                if task.task_id in seen.states:
                    then = state(control, task, seen.at)
                    assert then == seen.states[task.task_id], (seen.at, task)


# --- what only the journal tells: SQLite stands for PostgreSQL here -------------------------------


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Life]:
    made = await live(sqlite.database(tmp_path / "late.db"))
    yield made
    await made.store.close()


def fields(found: Status | TaskView | Verified) -> set[str]:
    assert found.as_of is not None
    return {each.field for each in found.as_of.not_known}


async def test_a_log_that_is_gone_leaves_lower_bounds_and_no_ages(embedded: Life) -> None:
    execute(embedded.url, "delete from late_task where seq <= 4")
    with Control(embedded.url) as control:
        found = control.status.read(as_of=embedded.seen[0].at)
        queues = {each.queue: each for each in found.queues}
        assert queues["bills"].depth.capped
        assert {"queues.oldest_age_s", "shards.lag_s", "groups.lag_s"} <= fields(found)
        # The open task of the second moment is gone, so which queue it was of is not known.
        second = control.status.read(as_of=embedded.seen[1].at)
        both = {each.queue: (each.in_flight, each.parked) for each in second.queues}
        least = Count(0, capped=True)
        assert both == {"bills": (least, least), "mail": (least, least)}


async def test_records_that_were_read_when_they_were_old_count(embedded: Life) -> None:
    """Their ages in the journal say that they were there at the moment."""
    moment = embedded.seen[3].at
    old = Usage("mail", "count", "", ENQUEUED, 3, waiting=((bucket(3_600_000_000), 3),))
    await embedded.owner.settle(cursor=embedded.cursor, usage=(old, usage("mail", "done", 3)))
    execute(embedded.url, "delete from late_task")
    with Control(embedded.url) as control:
        (mail,) = [e for e in control.status.read(as_of=moment).queues if e.queue == "mail"]
    assert (mail.depth, mail.in_flight, mail.parked) == (Count(3), Count(), Count(1))


async def test_dead_letters_that_were_moved_since_are_not_guessed(embedded: Life) -> None:
    moment = embedded.seen[3].at
    with Control(embedded.url) as control:
        assert "queues.dead" not in fields(control.status.read(as_of=moment))
        control.dead_letters.redrive(Filter(group="default"))
        found = control.status.read(as_of=moment)
        assert {"queues.dead", "queues.parked", "queues.in_flight"} <= fields(found)
        assert {each.dead for each in found.queues} == {Count(0, capped=True)}
        plain = left_out(found)
        assert not {"dead", "parked", "in_flight"} & plain["queues"][0].keys()
        assert "workers" not in plain
        letter = embedded.letter.task_id
        shown = control.tasks.show(letter, as_of=moment)
        assert "groups[default].state" in fields(shown)
        assert "state" not in left_out(shown)["groups"][0]


async def test_a_task_that_ended_without_a_history_is_not_guessed(embedded: Life) -> None:
    done = embedded.done
    with Control(embedded.url) as control:
        found = control.tasks.show(done.task_id, as_of=embedded.seen[0].at)
        assert found.groups[0].state == "logged"
        found = control.tasks.show(done.task_id, as_of=embedded.seen[1].at)
        assert "groups[default].state" in fields(found)
        step = (
            "insert into late_history (consumer_group, task_id, number, at_us, event, worker)"
            " values ('default', :task_id, 1, :at_us, 'done', 'w')"
        )
        at_us = embedded.seen[0].status.now_us + 1
        execute(embedded.url, step, task_id=done.task_id, at_us=at_us)
        (group,) = control.tasks.show(done.task_id, as_of=embedded.seen[1].at).groups
        assert (group.state, group.outcome) == ("settled", "done")


async def test_the_journal_of_a_moment_is_verified(embedded: Life) -> None:
    with Control(embedded.url) as control:
        ledgers = [
            control.verify(as_of=seen.at, shard_id=SHARD).ledgers[0] for seen in embedded.seen
        ]
        assert [each.seq for each in ledgers] == [1, 2, 3, 3]
        assert [each.totals.open for each in ledgers] == [0, 1, 0, 0]
        assert ledgers[1].ended == {"done": 2}
        assert ledgers[2].ended == {"dead": 1, "done": 2}
        found = control.verify(as_of=embedded.seen[1].at)
        assert found.ok
        assert "totals.parked" in fields(found)
        # Damage from later on is not of that moment.
        execute(embedded.url, "update late_settlement set epoch = 0 where seq = 3")
        assert not control.verify(as_of=embedded.seen[2].at).ok
        assert control.verify(as_of=embedded.seen[1].at).ok
        execute(embedded.url, "delete from late_settlement where seq = 2")
        with pytest.raises(ConfigError, match="behind 1 of group default, shard 3 are missing"):
            control.verify(as_of=embedded.seen[1].at)


async def test_a_moment_before_the_detail_is_refused_and_the_reach_is_named(embedded: Life) -> None:
    """Compaction has put settlements 2 and 3 together: of the second moment nobody knows."""
    execute(embedded.url, "delete from late_settlement where seq = 2")
    execute(embedded.url, "update late_settlement set first_seq = 2 where seq = 3")
    with Control(embedded.url) as control:
        assert control.status.read(as_of=embedded.seen[3].at).as_of is not None
        for asked in (control.status.read, control.verify):
            with pytest.raises(ConfigError, match=r"has each settlement since .* only"):
                asked(as_of=embedded.seen[1].at)
        with pytest.raises(ConfigError, match="LATE_JOURNAL_DETAIL_S"):
            control.tasks.show(embedded.done.task_id, as_of=embedded.seen[1].at)


async def test_groups_of_later_and_groups_that_are_gone(embedded: Life) -> None:
    with Control(embedded.url) as control:
        control.groups.create("audit", start="beginning")
        control.groups.create("post", start="now")
        control.groups.delete("post")
        found = control.status.read(as_of=embedded.seen[3].at)
        assert [each.name for each in found.groups] == ["default"]
        assert "group post" in fields(found)
        later = control.tasks.show(embedded.done.task_id, as_of=embedded.seen[0].at)
        assert [each.group for each in later.groups] == ["audit", "default"]


def test_wrong_moments_get_one_clear_line(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "late.db")
    said = {
        "9d": "the database is younger, it was made at",
        "2100-01-01T00:00Z": "it has not come yet",
        "yesterday": "expected 2026-05-01T12:00:00Z, or an age such as 2h",
        "2026-11-28T07:00": "has no time zone",
    }
    asked = [(["status"], text, line) for text, line in said.items()]
    asked += [(command, "9d", said["9d"]) for command in (["verify"], ["show", new_id(ShardId(0))])]
    for command, text, line in asked:
        done = CliRunner().invoke(cli, [*command, "--url", url, "--as-of", text])
        assert isinstance(done.exception, ConfigError)
        assert line in str(done.exception), (command, text)
        assert len(str(done.exception).splitlines()) == 1
        assert done.stdout == ""


async def test_the_command_leaves_out_and_names_what_is_not_known(embedded: Life) -> None:
    asked = ["status", "--url", embedded.url, "--as-of", embedded.seen[1].at]
    told = CliRunner().invoke(cli, asked)
    assert told.exit_code == 0
    assert "not known for then: workers, unhandled" in told.stderr
    assert "Workers" not in told.stdout
    assert "stale" not in told.stdout
    plain = json.loads(CliRunner().invoke(cli, [*asked, "--json"]).stdout)
    assert plain["as_of"]["at_us"] == plain["now_us"] == embedded.seen[1].status.now_us
    assert plain["as_of"]["source"] == "journal"
    assert "workers" not in plain
    assert "stale_s" not in plain["shards"][0]
    early = ["show", embedded.records[-1].task_id, "--url", embedded.url]
    shown = CliRunner().invoke(cli, [*early, "--as-of", embedded.seen[0].at])
    assert shown.exit_code == 1
    assert "it was not enqueued by then" in shown.stderr
