"""Lanes beside `default`: what goes to one, what is refused, and who learns of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from sqlalchemy.orm import Session
from typer.testing import CliRunner

import late
from late.cli.main import app as cli
from late.control import Control
from late.errors import ConfigError, Conflict, InvalidName, InvalidTask
from late.model.ids import shard_of
from late.outbox import connect, connect_async
from late.schema.engine import make_engine
from late.testing import drain, inline
from tests.conformance.backends import Backend
from tests.integration.control_kit import rows

FIRST = 1024
"""The first shard of the first lane that is made."""
BULK = set(range(FIRST, FIRST + 2))


@pytest.fixture
def control(url: str) -> Iterator[Control]:
    with Control(url) as made:
        yield made


@pytest.fixture
def bulk(control: Control) -> None:
    made = control.lanes.create("bulk", 2)
    assert (made.first_shard, made.shards, made.version) == (FIRST, 2, 0)


def app_of(url: str, **options: Any) -> late.App:
    app = late.App(url)

    @app.task(lane="bulk", **options)
    def load(n: int) -> int:
        return n

    @app.task
    def ask(n: int) -> None: ...

    return app


def shards(ids: list[Any]) -> set[int]:
    return {shard_of(each) for each in ids}


def test_screens_say_of_which_lane_a_shard_is(url: str, control: Control) -> None:
    def ran(*words: str) -> str:
        done = CliRunner().invoke(cli, ["status", *words, "--url", url])
        assert done.exit_code == 0, done.output
        return done.output

    for words in ([], ["--owners"]):
        assert " lane " not in ran(*words), "there is one alone"
    control.lanes.create("bulk", 2)
    listed = {(each.shard_id, each.lane) for each in control.status.read().shards}
    assert {(0, "default"), (7, "default"), (FIRST, "bulk"), (FIRST + 1, "bulk")} <= listed
    owned = {(each.shard_id, each.lane) for each in control.status.owners().shards}
    assert {(0, "default"), (FIRST, "bulk")} <= owned
    for words in ([], ["--owners"]):
        assert " lane " in ran(*words)
        assert " bulk " in ran(*words)


@pytest.mark.usefixtures("bulk")
def test_a_task_goes_to_its_lane_and_runs_there(url: str) -> None:
    app = app_of(url)
    load, ask = app.tasks["load"], app.tasks["ask"]
    with connect(url) as tx:
        there = [load.enqueue(tx, n) for n in range(4)]
        here = [ask.enqueue(tx, 1), load.options(lane="default").enqueue(tx, 2)]
        there.append(ask.options(lane="bulk").enqueue(tx, 3))
        there.append(app.send(tx, "load", {"n": 5}))
    assert shards(there) == BULK
    assert shards(here) <= set(range(8))
    assert drain(app) == {"done": 8}


@pytest.mark.usefixtures("bulk")
def test_a_batch_of_several_lanes_is_one_statement_in_order(url: str) -> None:
    app = app_of(url)
    load, ask = app.tasks["load"], app.tasks["ask"]
    calls = [(load if n % 3 else ask).call(n) for n in range(9)]
    with connect(url) as tx:
        first, again = app.enqueue_many(tx, calls), app.enqueue_many(tx, calls)
    for ids in (first, again):
        assert [shard_of(each) in BULK for each in ids] == [bool(n % 3) for n in range(9)]
    found = {str(row[0]): row[1] for row in rows(url, "select task_id, name from late_task")}
    assert [found[each] for each in first] == [call.name for call in calls]


@pytest.mark.usefixtures("bulk")
def test_keys_of_a_lane_follow_its_resize(url: str, backend: Backend, control: Control) -> None:
    app = app_of(url)
    load = app.tasks["load"]
    with connect(url) as tx:
        before = [load.options(ordering_key=f"k{n}").enqueue(tx, n) for n in range(6)]
    assert shards(before) == BULK
    if not backend.resizes:
        return
    control.lanes.resize("bulk", 5)
    with connect(url) as tx:
        after = app.enqueue_many(
            tx, [load.options(ordering_key=f"k{n}", unique_key=f"u{n}").call(n) for n in range(9)]
        )
        keyed = [load.options(ordering_key=f"k{n}") for n in range(9)]
        after += app.enqueue_many(tx, [each.call(n) for n, each in enumerate(keyed)])
    assert shards(after) > BULK
    assert control.tasks.show(after[0]).options["layout"] == 1
    assert drain(app) == {"done": 24}


@pytest.mark.usefixtures("bulk")
def test_keys_of_two_lanes_in_one_call_are_refused(url: str) -> None:
    app = app_of(url)
    calls = [app.tasks[name].options(ordering_key="k").call(1) for name in ("load", "ask")]
    with connect(url) as tx:
        app.tasks["load"].enqueue(tx, 0)
        with pytest.raises(InvalidTask, match="two lanes, bulk and default"):
            app.enqueue_many(tx, calls)
        for call in calls:
            app.enqueue_many(tx, [call, app.tasks["ask"].call(2)])
    assert drain(app) == {"done": 5}


def test_a_lane_that_does_not_exist_takes_nothing(url: str) -> None:
    app = app_of(url)
    with connect(url) as tx:
        for _ in range(2):
            with pytest.raises(InvalidTask, match=r"no lane 'bulk'; known: default\. `late shards"):
                app.enqueue_many(tx, [app.tasks["ask"].call(1), app.tasks["load"].call(2)])
        app.tasks["ask"].enqueue(tx, 3)
    assert drain(app) == {"done": 1}


@pytest.mark.usefixtures("bulk")
def test_workflows_and_other_transactions_know_lanes(url: str) -> None:
    app = app_of(url)
    load, ask = app.tasks["load"], app.tasks["ask"]
    engine = make_engine(url)
    try:
        with Session(engine) as session, session.begin():
            one = load.enqueue(session, 1)
    finally:
        engine.dispose()
    assert shard_of(one) in BULK
    app = app_of(url)
    load, ask = app.tasks["load"], app.tasks["ask"]
    if not url.startswith("cockroachdb"):
        with connect(url) as tx:
            ids = app.enqueue_workflow(tx, late.chain(ask.call(1), load.call(2), ask.call(3)))
        assert [shard_of(each) in BULK for each in ids] == [False, True, False]
        assert drain(app)["done"] == 4


@pytest.mark.usefixtures("bulk")
async def test_async_transactions_know_lanes(url: str) -> None:
    app = app_of(url)
    async with connect_async(url) as tx:
        one = await app.tasks["load"].enqueue(tx, 1)
        ids = await app.enqueue_many(tx, [app.tasks["load"].call(2), app.tasks["ask"].call(3)])
    assert [shard_of(each) in BULK for each in (one, *ids)] == [True, True, False]


@pytest.mark.usefixtures("bulk")
def test_producers_learn_of_lanes_while_they_follow(url: str) -> None:
    app = app_of(url)
    assert app.unknown_lanes([app.tasks["load"].call(1)]) == {"bulk"}
    with app.follow():
        assert app.unknown_lanes([app.tasks["load"].call(1)]) == set()


def test_captured_tasks_need_no_lane(url: str) -> None:
    app = app_of(url)
    with inline(app) as box:
        app.tasks["load"].enqueue(None, 1)
        app.enqueue_workflow(None, late.chain(app.tasks["load"].call(2), app.tasks["ask"].call(3)))
        assert box.run() == 3


def test_lanes_are_made_beside_each_other(control: Control, backend: Backend) -> None:
    assert control.lanes.create("a", 1).first_shard == FIRST
    assert control.lanes.create("b", 1024).first_shard == 2 * FIRST
    with pytest.raises(Conflict, match="there is a lane 'a'"):
        control.lanes.create("a", 1)
    for width in (0, 1025):
        with pytest.raises(ConfigError, match="1 to 1024 shards"):
            control.lanes.create("c", width)
    with pytest.raises(InvalidName):
        control.lanes.create("a b", 1)
    assert control.lanes.create("c", 1).first_shard == 3 * FIRST
    with pytest.raises(ConfigError, match="no room for one more lane"):
        control.lanes.create("d", 1)
    control.lanes.remove("b")
    with pytest.raises(ConfigError, match="1 to 1024 shards"):
        control.lanes.create("b", 1025)
    assert control.lanes.create("e", 3).first_shard == 2 * FIRST
    made = [each for each in control.audit.entries() if each.action == "lane.create"]
    assert [each.subject for each in made] == ["lane:e", "lane:c", "lane:b", "lane:a"]


@pytest.mark.usefixtures("bulk")
def test_what_a_lane_had_runs_after_it_was_removed(
    url: str, backend: Backend, control: Control
) -> None:
    app = app_of(url)
    load = app.tasks["load"]
    with connect(url) as tx:
        load.options(ordering_key="k").enqueue(tx, 1)
    control.lanes.remove("bulk")
    with connect(url) as tx:
        load.enqueue(tx, 2)  # by a producer that knows the lane
        with pytest.raises(InvalidTask, match="no lane 'bulk'; known: default"):
            app_of(url).tasks["load"].enqueue(tx, 3)
    assert drain(app) == {"done": 2}
    assert [each.name for each in control.lanes.all()] == ["default"]
    with pytest.raises(ConfigError, match="no lane 'bulk'"):
        control.lanes.remove("bulk")
    with pytest.raises(ConfigError, match="cannot be removed"):
        control.lanes.remove("default")
    assert control.lanes.create("bulk", 2).first_shard == FIRST
    if backend.resizes:
        control.lanes.resize("bulk", 3)
        with pytest.raises(Conflict, match="was resized"):
            control.lanes.remove("bulk")


def test_a_lane_begins_above_what_others_had(control: Control, backend: Backend) -> None:
    if not backend.resizes:
        return
    control.lanes.resize("default", 1500)
    assert control.lanes.resize("default", 1500).shards == 1500
    assert control.lanes.create("bulk", 1).first_shard == 2 * FIRST


@pytest.mark.usefixtures("bulk")
def test_each_lane_has_its_own_figures_for_the_autoscaler(url: str, control: Control) -> None:
    app = app_of(url)
    with connect(url) as tx:
        app.enqueue_many(tx, [app.tasks["load"].call(n) for n in range(6)])
        app.tasks["ask"].enqueue(tx, 7)
    seen = {name: control.status.lane_signals(["default"], name)[0] for name in ("default", "bulk")}
    assert {name: each.backlog for name, each in seen.items()} == {"default": 1, "bulk": 6}
    assert drain(app) == {"done": 7}
    seen = {name: control.status.lane_signals(["default"], name)[0] for name in seen}
    assert {name: round(each.rate * 60) for name, each in seen.items()} == {"default": 1, "bulk": 6}
    assert [each.backlog for each in seen.values()] == [0, 0]
    assert {name: each.shards for name, each in seen.items()} == {"default": 8, "bulk": 2}


def test_a_lone_lane_has_the_figures_of_its_group(url: str, control: Control) -> None:
    app = app_of(url)
    with connect(url) as tx:
        app.tasks["ask"].enqueue(tx, 7)
    ours, theirs = (
        msgspec.structs.replace(found, age_s=0.0)
        for (found,) in (
            control.status.lane_signals(["default"], "default"),
            control.status.signals([("default", None)]),
        )
    )
    assert ours == theirs
    control.lanes.create("bulk", 1)
    with pytest.raises(ConfigError, match="no group 'other'"):
        control.status.lane_signals(["other"], "default")
