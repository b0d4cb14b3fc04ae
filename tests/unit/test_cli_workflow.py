"""`late workflow`, from the command line of an operator."""

from __future__ import annotations

import pytest

import late
from late.control import workflows
from late.model.ids import new_id
from late.outbox import connect
from late.testing import drain
from tests.unit.cli_kit import Cli
from tests.unit.workflow_kit import next_ms

broken = [True]


def app_of(cli: Cli) -> late.App:
    app = late.App(cli.url)
    broken[:] = [True]

    @app.task(retry=late.Retry(max_attempts=1))
    def charge(number: int) -> None:
        if broken:
            raise ValueError("card declined")

    @app.task
    def ship(number: int) -> None: ...

    return app


def put(app: late.App, first: str) -> list[late.TaskId]:
    next_ms()
    with connect(app.url) as tx:
        ids: list[late.TaskId] = app.enqueue_workflow(
            tx, late.chain(app.tasks[first].call(1), app.tasks["ship"].call(2))
        )
    return ids


def test_a_list_of_workflows(cli: Cli) -> None:
    assert cli.fine("workflow", "list").out == "Workflows: none\n"
    app = app_of(cli)
    good, bad = put(app, "ship"), put(app, "charge")
    drain(app)
    page = cli.fine("workflow", "list", cli.url, "--json").json
    assert [each["workflow_id"] for each in page["workflows"]] == [bad[0], good[0]]
    assert page["workflows"][0] | {"made_at_us": 0} == {
        "workflow_id": bad[0], "name": "charge", "made_at_us": 0, "state": "failed", "tasks": 2,
        "done": 0, "running": 0, "waiting": 1, "failed": 1, "dead": 1, "cancelled": 0,
    }  # fmt: skip
    assert (page["looked"], page["after"]) == (4, None)
    failed = cli.fine("workflow", "list", "--state", "failed")
    assert bad[0] in failed.out
    assert good[0] not in failed.out
    assert (" 0/2 " in failed.out, failed.err) == (True, "")
    assert good[0] in cli.fine("workflow", "list", "--name", "ship").out
    first = cli.fine("workflow", "list", "--limit", "1")
    assert first.err == f"more: --after {bad[0]}\n"
    rest = cli.fine("workflow", "list", "--after", bad[0])
    assert (good[0] in rest.out, bad[0] in rest.out) == (True, False)
    assert "'lost'" in cli.refused("workflow", "list", "--state", "lost")


def test_a_list_that_stopped_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(cli)
    ids = [put(app, "ship")[0] for _ in range(3)]
    monkeypatch.setattr(workflows, "ROWS", 3)
    monkeypatch.setattr(workflows, "LOOKED", 3)
    told = cli.fine("workflow", "list", "--state", "failed").err
    assert told == f"looked at 3 tasks, stopped there\nmore: --after {ids[2]}\n"


def test_one_workflow_as_a_whole(cli: Cli) -> None:
    app = app_of(cli)
    ids, other = put(app, "charge"), put(app, "charge")
    running = cli("workflow", "wait", ids[1], "--timeout", "0s")
    assert (running.code, running.out) == (1, "running: 0 of 2 done, 1 running, 1 waiting\n")
    drain(app)
    shown = cli.fine("workflow", "show", ids[1]).out
    assert "state       failed\n" in shown
    assert "tasks       0 of 2 done, 1 waiting, 1 failed\n" in shown
    assert f"0  dead         charge  {ids[0]}\n" in shown
    assert f"1  waiting        ship  after 0  {ids[1]}\n" in shown
    told = cli.fine("workflow", "show", ids[1], "--json").json
    assert (told["workflow_id"], told["dead"]) == (ids[0], 1)
    assert [each["task_id"] for each in told["stages"]] == ids
    waited = cli("workflow", "wait", ids[1], "--json")
    assert (waited.code, waited.json["state"]) == (1, "failed")
    letters = cli.fine("dead", "list", "--workflow", ids[1]).out
    assert ("card declined" in letters, other[0] in letters) == (True, False)
    would = cli.fine("workflow", "redrive", ids[1], "--dry-run").out
    assert would == f"would redrive 1 dead letter\n  {ids[0]}\n"
    assert cli.fine("workflow", "redrive", ids[1]).out == "redriven 1 dead letter\n"
    assert cli.fine("workflow", "redrive", ids[1], "--json").json["count"] == 0
    broken.clear()
    drain(app)
    assert cli.fine("workflow", "wait", ids[0]).out == "done: 2 of 2 done\n"
    over = cli.fine("workflow", "cancel", ids[0])
    assert over.err == "note: it has ended, so this will change nothing\n"


def test_a_stage_that_cannot_read_its_result_says_so(cli: Cli) -> None:
    app = late.App(cli.url)

    @app.task(result_ttl=60)
    def count(number: int) -> str:
        return "many"

    @app.task
    def add(number: int) -> None: ...

    with connect(app.url) as tx:
        ids = app.enqueue_workflow(tx, late.chain(count.call(1), add.then(late.RESULT)))
    drain(app)
    shown = cli.fine("workflow", "show", ids[0]).out
    assert f"1  parked         add  after 0  {ids[1]}\n" in shown
    assert f"add {ids[1]} is parked until " in shown
    assert ": unknown\n  attempt 1  " in shown
    assert "Expected `int`, got `str` - at `$.number`" in shown


def test_a_cancel_of_all_of_it(cli: Cli) -> None:
    app = app_of(cli)
    ids = put(app, "ship")
    asked = cli.fine("workflow", "cancel", ids[1])
    assert asked.out == (f"asked to cancel workflow {ids[0]}: 0 of 2 done, 1 running, 1 waiting\n")
    assert asked.err == ""
    drain(app)
    ended = cli("workflow", "wait", ids[1])
    assert (ended.code, ended.out) == (1, "cancelled: 0 of 2 done, 2 cancelled\n")
    assert "command" in cli.fine("workflow", "cancel", ids[1], "--json").json


def test_a_task_of_no_workflow(cli: Cli) -> None:
    alone = new_id(0)
    for command in ("show", "cancel", "wait", "redrive"):
        ended = cli("workflow", command, alone)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"no workflow has a task {alone}")
        assert "x" in cli.refused("workflow", command, "x")
