"""Two versions of an app over one database: names and parameters change while tasks wait."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import late
from late import events, outbox
from late.app.handlers import handlers_of
from late.cli.main import main
from late.control import Control, Filter
from late.errors import ConfigError
from late.model.handlers import text_of
from late.model.ids import new_id
from late.model.task import NewTask
from late.outbox import connect
from late.payload.codec import Signed
from late.store import open_store
from late.store.base import WorkerInfo
from late.testing import drain


def old_app(url: str, ran: list[object]) -> late.App:
    app = late.App(url)

    @app.task(name="charge")
    def charge(ctx: late.Context, order: int) -> None:
        ran.append((ctx.attempt, order))

    return app


def new_app(url: str, ran: list[object], **options: object) -> late.App:
    app = late.App(url)

    @app.task(name="charge", **options)  # type: ignore[call-overload,misc]
    def charge(ctx: late.Context, order: int, currency: str) -> None:
        ran.append((ctx.attempt, order, currency))

    return app


def dead(url: str) -> list[str]:
    with Control(url) as control:
        return [letter.reason for letter in control.dead_letters.find(Filter())]


@pytest.mark.parametrize("late_first", [False, True], ids=["a new task", "an old task"])
def test_arguments_that_do_not_fit_wait_for_the_version_that_takes_them(
    url: str, late_first: bool
) -> None:
    ran: list[object] = []
    old, new = old_app(url, ran), new_app(url, ran)
    maker, other = (old, new) if late_first else (new, old)
    arguments = {"order": 7} if late_first else {"order": 7, "currency": "EUR"}
    with connect(url) as tx:
        maker.tasks["charge"].enqueue(tx, **arguments)
    # A worker of the other version does not run it, and does not end it
    assert drain(other) == {}
    assert (ran, dead(url)) == ([], [])
    # One of its own does, as its first attempt
    assert drain(maker, wait_s=5) == {"done": 1}
    assert ran == [(1, 7) if late_first else (1, 7, "EUR")]


def test_why_it_waits_can_be_seen(url: str) -> None:
    app = new_app(url, [])
    with connect(url) as tx:
        task_id = old_app(url, []).tasks["charge"].enqueue(tx, 7)
    told: list[str] = []
    leave = events.default.subscribe(
        lambda _, values: told.append(values["error"]), [events.UNKNOWN_TASK]
    )
    drain(app)
    leave()
    assert "missing required field `currency`" in told[0]
    with Control(url) as control:
        [group] = control.tasks.show(task_id).groups
    assert (group.state, group.reason, group.attempts) == ("parked", "unknown", 0)
    [error] = group.errors
    assert "missing required field `currency`" in error.error


def test_what_waits_under_a_former_name_runs(url: str) -> None:
    ran: list[object] = []
    app = new_app(url, ran, aliases=("bill", "invoice"))
    with connect(url) as tx:
        for name in ("bill", "charge", "invoice"):
            payload = json.dumps({"order": 1, "currency": name}).encode()
            outbox.insert(tx, [NewTask(0, new_id(0), "default", name, payload)])
    assert drain(app) == {"done": 3}
    assert sorted(ran) == [(1, 1, "bill"), (1, 1, "charge"), (1, 1, "invoice")]
    assert app.tasks["charge"].name == app.tasks["bill"].name == "charge"
    with pytest.raises(ConfigError, match="'bill' is registered twice"):
        app.task(name="bill")(print_nothing)
    with pytest.raises(ConfigError, match="'own' is registered twice"):
        app.task(name="own", aliases=("own",))(print_nothing)
    with pytest.raises(ConfigError, match="aliases is a list of names"):
        app.task(aliases="old")(print_nothing)


def print_nothing() -> None: ...


def scheduled(url: str, ran: list[object], name: str, *aliases: str, **given: Any) -> late.App:
    """An app with a schedule that has the name of its task."""
    app = late.App(url, **given)

    @app.schedule("0 * * * *")
    @app.task(name=name, aliases=aliases)
    def work() -> None:
        ran.append(name)

    return app


@pytest.mark.parametrize(
    "codec", [None, Signed(keys={"k": secrets.token_bytes(32)}, current="k", bind_options="write")]
)
def test_a_schedule_keeps_its_name_when_its_task_is_renamed(url: str, codec: Signed | None) -> None:
    ran: list[object] = []
    given = {} if codec is None else {"codec": codec}
    old = scheduled(url, ran, "nightly", **given)
    new = scheduled(url, ran, "etl.nightly", "nightly", **given)
    third = scheduled(url, ran, "third", "nightly", "etl.nightly", **given)
    with Control(url) as control:
        # Also back, and when a worker of the old version starts between.
        for app in (old, new, old, new, third):
            assert control.schedules.sync(app.schedules) == ["nightly"]
            [row] = control.schedules.all()
            assert (row.name, row.task_name) == ("nightly", app.schedules[0].task_name)
        control.schedules.pause("nightly")
        now_us = control.now()
        assert control.schedules.backfill("nightly", now_us - 3_600_000_000, now_us).enqueued == 1
        assert drain(third) == {"done": 1}
        assert ran == ["third"]
        assert [row.paused for row in control.schedules.all()] == [True]
        assert control.schedules.doubles(third.schedules) == []


def test_a_schedule_under_a_second_name_is_told(
    url: str,
    module: ModuleType,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Control(url) as control:
        control.schedules.sync(scheduled(url, [], "nightly").schedules)
        control.schedules.sync(scheduled(url, [], "etl.nightly", "nightly").schedules)
    # The former name is gone from the code too early.
    module.app = scheduled(url, [], "etl.nightly")
    assert exit_code(["check", f"{module.__name__}:app", url]) == 0
    assert "the schedule 'etl.nightly' runs its task at the times of the" in capsys.readouterr().err
    drain(module.app)
    assert "'etl.nightly' runs its task at the times of the schedule 'nightly'" in caplog.text
    with Control(url) as control:
        assert [row.name for row in control.schedules.all()] == ["etl.nightly", "nightly"]
        # It comes back, and both rows are there: neither is changed without an operator.
        back = scheduled(url, [], "etl.nightly", "nightly")
        assert control.schedules.doubles(back.schedules) == [("etl.nightly", "nightly")]
        assert control.schedules.doubles([]) == []


def test_a_schedule_of_another_task_is_not_taken_over(url: str) -> None:
    other = late.App(url)

    @other.schedule(every=3600, name="nightly")
    @other.task
    def backup() -> None: ...

    both = scheduled(url, [], "etl.nightly", "own")
    both.schedule(every=7200, name="own")(both.tasks["etl.nightly"])
    new = scheduled(url, [], "etl.more", "nightly")
    with Control(url) as control:
        for app in (other, new, both):
            control.schedules.sync(app.schedules)
        found = [(row.name, row.task_name) for row in control.schedules.all()]
        assert found == [
            ("etl.more", "etl.more"),
            ("etl.nightly", "etl.nightly"),
            ("nightly", "backup"),
            ("own", "etl.nightly"),
        ]
        assert control.schedules.doubles(new.schedules) == []


# -- late check ------------------------------------------------------------------------------------


@pytest.fixture
def module(url: str) -> Iterator[ModuleType]:
    made = ModuleType("late_test_changing")
    made.app = new_app(url, [])  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def exit_code(command: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(command)
    return ended.value.code


def test_a_check_finds_what_an_app_could_not_run(
    url: str, module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    old = old_app(url, [])

    @old.task(name="forgotten")
    def forgotten() -> None: ...

    old.schedule(every=3600, name="hourly")(forgotten)
    charge = old.tasks["charge"]
    # Given tasks that fit, that do not, that nobody knows: waiting, parked, and to be scheduled
    command = ["check", f"{module.__name__}:app", url, "--json"]
    with connect(url) as tx:
        module.app.tasks["charge"].enqueue(tx, 1, "EUR")
    assert exit_code(command) == 0
    fleet = {"workers": 0, "undeclared": 0, "missing": [], "differ": []}
    fits = {"looked": 1, "capped": False, "misfits": [], "fleet": fleet}
    assert json.loads(capsys.readouterr().out) == fits
    with connect(url) as tx:
        one = charge.enqueue(tx, 2)
        charge.options(delay=3600).enqueue(tx, 3)
        forgotten.enqueue(tx)
    assert exit_code(command) == 1
    first = json.loads(capsys.readouterr().out)
    found = {(each["name"], each["tasks"]) for each in first["misfits"]}
    assert found == {("charge", 2), ("forgotten", 1)}
    assert [m["why"] for m in first["misfits"] if m["name"] == "forgotten"] == ["no handler"]
    assert "currency" in next(m["why"] for m in first["misfits"] if m["name"] == "charge")
    # And of the parked, as a worker of the old version leaves them, with its schedule
    assert drain(old)["done"] == 2
    assert exit_code(command) == 1
    second = json.loads(capsys.readouterr().out)
    assert {(m["name"], m["example"]) for m in second["misfits"]} >= {("forgotten", "hourly")}
    assert [m["tasks"] for m in second["misfits"] if m["name"] == "charge"] == [1]
    assert one not in {m["example"] for m in second["misfits"]}
    # It says where it stopped looking
    assert exit_code([*command[:3], "--limit", "1"]) == 1
    assert "there are more" in capsys.readouterr().out


def test_a_check_looks_at_stages_that_wait_for_others(url: str) -> None:
    old, new, empty = late.App(url), late.App(url), late.App(url)

    @old.task(result_ttl=60, retry=late.Retry(max_attempts=1))
    def first(fails: bool) -> int:
        if fails:
            raise ValueError
        return 1

    @old.task(name="fits")
    def fits(number: int, word: str, more: int = 0) -> None: ...

    @old.task
    def forgotten(number: int) -> None: ...

    @old.task(name="changed")
    def changed(number: int, word: str) -> None: ...

    new.task(result_ttl=60, retry=late.Retry(max_attempts=1))(first.fn)
    new.task(name="fits")(fits.fn)

    @new.task(name="changed")
    def renamed(count: int, word: str) -> None: ...

    def enqueue(delay: int, *, fails: bool = False) -> None:
        with connect(url) as tx:
            old.enqueue_workflow(
                tx,
                late.chain(
                    first.options(delay=delay).call(fails),
                    late.group(
                        fits.then(late.RESULT, word="x"),
                        changed.then(late.RESULT, "x"),
                        forgotten.then(late.RESULT),
                    ),
                ),
            )

    def found(app: late.App) -> set[tuple[str, int]]:
        with Control(url) as control:
            return {(m.name, m.tasks) for m in control.misfits(app.tasks, app.routes).misfits}

    enqueue(3_600)
    assert found(old) == set()
    assert found(new) == {("changed", 1), ("forgotten", 1)}
    assert found(empty) == {("first", 1), ("fits", 1), ("changed", 1), ("forgotten", 1)}
    with Control(url) as control:
        [why] = [m.why for m in control.misfits(new.tasks, ()).misfits if m.name == "changed"]
    assert "number" in why
    # Not where nothing can start them any more; a dead letter can be redriven
    enqueue(0, fails=True)
    drain(old)
    assert found(new) == {("changed", 2), ("forgotten", 2)}
    with Control(url) as control:
        control.dead_letters.purge(Filter())
    assert found(new) == {("changed", 1), ("forgotten", 1)}


async def test_a_check_compares_an_app_with_the_live_workers(
    url: str, module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given workers of the old version, of this one, of one that declares nothing, and of another
    group."""
    old = old_app(url, [])

    @old.task(name="forgotten")
    def forgotten() -> None: ...

    old.remote("charge.elsewhere", target="pull")
    store = open_store(url)
    await store.open()
    said = {
        "w1": text_of(handlers_of(old)),
        "w2": text_of(handlers_of(old)),
        "w3": text_of(handlers_of(module.app)),
        "w4": None,
    }
    for name, text in said.items():
        await store.heartbeat(WorkerInfo(name, "host:1", ("default",), handlers=text), 600)
    elsewhere = WorkerInfo("w5", "host:1", ("other",), handlers='{"theirs": "0123abcd"}')
    await store.heartbeat(elsewhere, 600)
    await store.close()
    command = ["check", f"{module.__name__}:app", url]
    assert await asyncio.to_thread(exit_code, [*command, "--json"]) == 0, "it is no error"
    assert json.loads(capsys.readouterr().out)["fleet"] == {
        "workers": 4,
        "undeclared": 1,
        "missing": [
            {"name": "charge.elsewhere", "workers": 2},
            {"name": "forgotten", "workers": 2},
        ],
        "differ": [{"name": "charge", "workers": 2}],
    }
    assert await asyncio.to_thread(exit_code, command) == 0
    told = capsys.readouterr().out
    assert "Not in this app" in told
    assert "Another signature" in told
    assert "compared with 4 live workers (1 without declared handlers)" in told


def test_a_check_says_that_a_target_is_called_with_what_does_not_fit(url: str) -> None:
    """Nothing of a worker looks at the arguments of a task that another service executes."""
    app = late.App(url)

    def like(order: int) -> None: ...

    app.remote("charge", target="billing", like=like)
    with connect(url) as tx:
        late.App(url, strict=False).send(tx, "charge", {"order": "seven"})
    with Control(url) as control:
        [misfit] = control.misfits(app.tasks, app.routes).misfits
    assert "payload does not fit the task" in misfit.why
    assert misfit.why.endswith("; the target 'billing' is called all the same")


def test_a_check_finds_a_lane_that_the_database_does_not_have(
    url: str, module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", f"{module.__name__}:app", url, "--json"]
    module.app.task(name="resize", lane="bulk")(lambda: None)
    assert exit_code(command) == 1
    assert "the lane 'bulk', which this database does not have" in capsys.readouterr().err
    with Control(url) as control:
        control.lanes.create("bulk", 1)
    assert exit_code(command) == 0
    assert "bulk" not in capsys.readouterr().err
