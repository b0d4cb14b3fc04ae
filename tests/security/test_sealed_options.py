"""Options, headers and due times are under the seal: whoever can write the log changes none."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import late
from late.control import Control, Filter
from late.control.misfits import find
from late.errors import ConfigError, DecodeError
from late.model.task import NewTask, Options
from late.model.ticks import tick, tick_headers, tick_id
from late.outbox import connect
from late.payload.codec import Encrypted, Signed, Subject
from late.payload.terms import ANCHOR_US
from late.schema.engine import make_engine
from late.testing import drain
from tests.integration.fleet_kit import SHARDS, until, working
from tests.security.sealed_kit import (
    KEYS,
    SEALS,
    changed,
    put,
    read,
    renamed,
    sealed_app,
    written,
)

SOON = datetime.now(UTC) + timedelta(hours=1)
# Each option of a row: how a producer chose it, and what somebody makes of it.
ALTERED: dict[str, tuple[dict[str, Any], Any]] = {
    "at_us": ({"at": SOON}, None),
    "delay_us": ({"delay": 3600}, 0),
    "expires_at_us": ({"expires": SOON}, None),
    "expires_in_us": ({"expires": 3600}, None),
    "priority": ({"priority": -10}, 100),
    "ordering_key": ({"ordering_key": "a"}, None),
    "unique_key": ({"unique_key": "a"}, "b"),
    "stage": ({}, True),
}
BY_LATE = {"layout": 7, "committed_below": 9, "replay": True}
"""What `late` adds to a row after the seal."""


def test_every_option_is_tried() -> None:
    others = {"codec", "schedule", "subject"}
    assert {*ALTERED, *BY_LATE, *others} == set(Options.__struct_fields__)


@pytest.mark.parametrize("option", [*ALTERED, "codec", "schedule"])
@pytest.mark.parametrize("seal", SEALS)
def test_an_altered_option_is_refused(seal: Any, option: str) -> None:
    app, _ = sealed_app("sqlite:///x.db", seal=seal)
    asked, value = ALTERED.get(option, ({}, "signed+msgpack"))
    row = written(app, 1, **asked)
    task = app.tasks["refund"]
    assert task.decode(*read(row)) == {"cents": 1}
    assert task.decode(*read(changed(row, **BY_LATE))) == {"cents": 1}
    with pytest.raises(DecodeError) as caught:
        task.decode(*read(changed(row, **{option: value})))
    assert caught.value.reason == "bad_signature"
    # Nor can one be added where the producer had chosen none
    plain = written(app, 1)
    added = read(row)[1]
    if asked:
        with pytest.raises(DecodeError):
            task.decode(*read(changed(plain, **{option: getattr(added, option)})))


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("headers", [None, "{}", '{"tenant":"b"}', '{"tenant":"a","x":"y"}', "{"])
def test_altered_headers_are_refused(seal: Any, headers: str | None) -> None:
    app, _ = sealed_app("sqlite:///x.db", seal=seal)
    row = written(app, 1, headers={"tenant": "a"})
    task = app.tasks["refund"]
    # A database may write JSON in another way
    loose = msgspec.structs.replace(row, headers='{ "tenant" : "a" }')
    assert task.decode(*read(loose)) == {"cents": 1}
    with pytest.raises(DecodeError) as caught:
        task.decode(*read(msgspec.structs.replace(row, headers=headers)))
    assert caught.value.reason == "bad_signature"


def test_rows_with_altered_options_never_run(url: str) -> None:
    app, ran = sealed_app(url)
    attacks = [
        changed(written(app, 1, **asked), **{option: value})
        for option, (asked, value) in ALTERED.items()
    ]
    row = written(app, 1)
    attacks.append(msgspec.structs.replace(row, headers='{"tenant":"b"}'))
    attacks.append(renamed(row))
    attacks.append(msgspec.structs.replace(row, shard_id=(row.shard_id + 1) % 8))
    put(url, *attacks)
    assert drain(app) == {"dead": len(attacks)}
    assert ran == []
    with Control(url) as control:
        letters = control.dead_letters.find(Filter())
    assert {(letter.reason, letter.attempts) for letter in letters} == {("bad_signature", 0)}


@pytest.mark.parametrize("seal", SEALS)
def test_the_form_of_a_seal_is_a_setting(url: str, seal: Any) -> None:
    """Old workers read the first form alone, so writing the second is switched on."""
    apps = {bind: sealed_app(url, bind, seal) for bind in ("read", "write", "require")}
    first, second = apps["read"][0], apps["write"][0]
    for bind, (app, _) in apps.items():
        magic = app.row(app.tasks["refund"].call(1)).payload[2:3]
        assert magic == (b"1" if bind == "read" else b"2")
        put(url, written(first, 1), written(second, 2), written(apps["require"][0], 3))
        app_, ran = apps[bind]
        outcome = drain(app_)
        if bind == "require":
            assert outcome == {"done": 2, "dead": 1}
            assert sorted(ran) == [2, 3]
        else:
            assert outcome == {"done": 3}
            assert sorted(ran) == [1, 2, 3]
    # And what was refused runs after the setting is back
    with Control(url) as control:
        assert control.dead_letters.redrive(Filter(reason="bad_signature")).count == 1
    assert drain(apps["write"][0], wait_s=1.0) == {"done": 1}


def test_what_changes_a_task_legitimately_goes_on(url: str) -> None:
    app, ran = sealed_app(url)
    task = app.tasks["refund"]
    options: dict[str, Any] = {"priority": 3, "headers": {"tenant": "a"}, "ordering_key": "k"}
    with Control(url) as control:
        # It has read nothing, so that no row leaves the log.
        control.groups.create("keeper", start="beginning")
    with connect(url) as tx:
        far = task.options(delay=3600, **options).enqueue(tx, 1)
        dead = task.options(**options).enqueue(tx, -2)
        edited = task.options(expires=3600).enqueue(tx, -3)
    # Given a task that is parked, and dead letters
    assert drain(app) == {"dead": 2}
    # When one is brought forward, one comes again and one comes with other arguments
    with connect(url) as tx:
        app.reschedule(tx, far, delay=0)
        app.redrive(tx, dead)
        app.redrive(tx, edited, call=task.call(4))
    assert drain(app, wait_s=1.0) == {"done": 2, "dead": 1}
    assert sorted(ran) == [-3, -2, -2, 1, 4]
    with Control(url) as control:
        (letter,) = control.dead_letters.find(Filter())
        assert letter.reason == "attempts_exhausted"
        control.groups.reset("default", to="beginning", dry_run=False)
    # And a group that reads all again can read it
    again = len(ran)
    ends = time.monotonic() + 120
    while not ran[again:] and time.monotonic() < ends:
        drain(app, wait_s=1.0)
    assert ran[again:]
    with Control(url) as control:
        assert control.dead_letters.find(Filter(reason="bad_signature")) == []


def ticks(app: late.App) -> late.Task[Any, Any]:
    @app.schedule(every=1, name="hourly", args={"cents": 5}, overlap="queue")
    @app.task(name="tick", priority=2)
    async def hourly(cents: int) -> None:
        app.ran.append(cents)  # type: ignore[attr-defined]

    return hourly


def test_ticks_run_and_their_payload_opens_nothing_else(url: str) -> None:
    app, _ = sealed_app(url)
    app.ran = ran = []  # type: ignore[attr-defined]
    hourly = ticks(app)
    with Control(url) as control:
        control.schedules.sync(app.schedules)
        engine = make_engine(url)
        assert find(engine, app.tasks, ()).misfits == ()
        engine.dispose()
        with pytest.raises(ConfigError, match="sealed for its due times"):
            control.schedules.run("hourly")

    # Given a schedule that fires
    async def fire() -> None:
        async with working(app):
            await until(lambda: len(ran) >= 2)

    asyncio.run(fire())
    with Control(url) as control:
        control.schedules.pause("hourly")
        (schedule,) = control.schedules.all()
        at_us = control.now() // 1_000_000 * 1_000_000
    drain(app)
    count = len(ran)
    # When somebody writes rows with its payload
    row = tick(schedule, at_us, is_bound=True)

    def at(due_us: int, **changes: Any) -> NewTask:
        made = changed(row, at_us=due_us, **changes)
        return msgspec.structs.replace(
            made,
            task_id=tick_id("hourly", row.shard_id, due_us),
            headers=msgspec.json.encode(tick_headers("hourly", due_us)).decode(),
        )

    attacks = [
        renamed(row),
        renamed(changed(row, at_us=None)),
        at(at_us - 1),  # between two due times
        at(at_us - 3 * 86_400_000_000),  # its turn was over long ago
        at(at_us - 7_000_000, priority=100),
        at(at_us - 8_000_000, ordering_key=None),
        at(at_us - 9_000_000, schedule=None),
        at(at_us - 10_000_000, schedule="other"),
        msgspec.structs.replace(at(at_us - 11_000_000), headers=None),
    ]
    put(url, *attacks)
    assert drain(app) == {"dead": len(attacks)}
    assert len(ran) == count
    # Nor does one run before its time
    put(url, at(at_us + 86_400_000_000))
    assert drain(app) == {}
    assert len(ran) == count
    assert hourly.decode(*read(row, at_us)) == {"cents": 5}


def test_a_schedule_that_comes_under_the_seal_moves_its_intervals_once(url: str) -> None:
    apps = {bind: sealed_app(url, bind, Signed)[0] for bind in ("read", "write")}
    for app in apps.values():
        ticks(app)
    with Control(url) as control:
        control.schedules.sync(apps["read"].schedules)
        (before,) = control.schedules.all()
        assert before.anchor_us > ANCHOR_US
        assert control.schedules.sync(apps["write"].schedules) == ["hourly"]
        (after,) = control.schedules.all()
        assert (after.anchor_us, (after.next_due_at_us or 1) % 1_000_000) == (ANCHOR_US, 0)
        assert control.schedules.sync(apps["write"].schedules) == []
        # A process with the setting of before does not move them back
        assert control.schedules.sync(apps["read"].schedules) == ["hourly"]
        assert control.schedules.all()[0].anchor_us == ANCHOR_US


@pytest.mark.parametrize("seal", SEALS)
def test_a_row_is_needed_to_open_the_second_form(seal: Any) -> None:
    app, _ = sealed_app("sqlite:///x.db", seal=seal)
    row = written(app, 1)
    with pytest.raises(DecodeError):
        app.codec.open(row.payload, Subject(row.task_id, row.name, row.queue))


@pytest.mark.parametrize("seal", SEALS)
def test_no_bit_of_the_second_form_can_be_changed(seal: Any) -> None:
    app, _ = sealed_app("sqlite:///x.db", seal=seal)
    ticks(app)
    (schedule,) = app.schedules
    due_us = time.time_ns() // 1_000_000_000 * 1_000_000
    for row in (written(app, 1), tick(schedule, due_us, is_bound=True)):
        task = app.tasks[row.name]
        task.decode(*read(row))
        for position in range(len(row.payload)):
            sealed = bytearray(row.payload)
            sealed[position] ^= 1
            with pytest.raises(DecodeError) as caught:
                task.decode(*read(msgspec.structs.replace(row, payload=bytes(sealed))))
            assert caught.value.reason == "bad_signature"
        for end in range(len(row.payload)):
            with pytest.raises(DecodeError):
                task.decode(*read(msgspec.structs.replace(row, payload=row.payload[:end])))


def test_seals_within_each_other_bind_together() -> None:
    inner = Encrypted(keys=KEYS, current="k1", bind_options="write")
    with pytest.raises(ConfigError, match="the outer one"):
        Signed(inner, keys=KEYS, current="k1")
    with pytest.raises(ConfigError, match="read, write, require"):
        Signed(keys=KEYS, current="k1", bind_options="yes")  # type: ignore[arg-type]
    both = Signed(inner, keys=KEYS, current="k1", bind_options="require")
    app = late.App("sqlite:///x.db", codec=both)

    @app.task
    def refund(cents: int) -> None: ...

    row = written(app, 1, priority=3)
    assert refund.decode(*read(row)) == {"cents": 1}
    with pytest.raises(DecodeError):
        refund.decode(*read(changed(row, priority=4)))


async def test_another_worker_opens_what_its_owner_cannot_run(url: str) -> None:
    app, ran = sealed_app(url)
    other = late.App(url, codec=app.codec)

    @other.task(name="other")
    async def unrelated() -> None: ...

    async with working(app, other):
        # One task in each shard: half of the owners have no handler for it
        rows = [written(app, n, priority=1, headers={"tenant": "a"}) for n in range(SHARDS)]
        await asyncio.to_thread(put, url, *rows)
        await until(lambda: sorted(ran) == list(range(SHARDS)))
