"""`late queue`, `late target`, `late knobs` as typed."""

from __future__ import annotations

from pathlib import Path

import pytest

import late
from late.control import Control
from late.outbox import connect
from late.testing import drain
from tests.unit.cli_kit import Cli


def test_turn_look_and_take_back(cli: Cli) -> None:
    said = cli.fine("queue", "set", "payments", "rate=50", "paused=on").out
    assert "rate goes from default to 50" in said
    assert "paused goes from default to on" in said
    change = said.split("late knobs rollback ")[1].strip()
    assert "payments" in cli.fine("knobs").out
    listed = cli.fine("knobs", "--json").json["knobs"]
    assert [(each["name"], each["knobs"]) for each in listed] == [
        ("payments", {"rate": 50.0, "paused": True})
    ]
    assert "queue.set" in cli.fine("knobs", "--history").out
    cli.fine("knobs", "rollback", change)
    assert cli.fine("knobs", "--json").json == {"knobs": []}


def test_the_history_says_that_there_is_more(cli: Cli) -> None:
    for rate in (1, 2, 3):
        cli.fine("queue", "set", "payments", f"rate={rate}")
    for limit, more in (("2", True), ("3", False)):
        told = cli.fine("knobs", "--history", "--limit", limit)
        assert told.out.count("queue.set") == int(limit)
        assert (f"the latest {limit}; there are more" in told.err) is more
    as_json = cli.fine("knobs", "--history", "--limit", "2", "--json")
    assert len(as_json.json["changes"]) == 2


def test_pause_resume_and_show(cli: Cli) -> None:
    cli.fine("enqueue", "charge", "--queue", "payments")
    cli.fine("queue", "pause", "payments")
    shown = cli.fine("queue", "show", "payments", "--json").json
    assert shown["set"] == {"paused": True}
    cli.fine("queue", "resume", "payments")
    assert "nothing to change" in cli.fine("queue", "resume", "payments").out
    cli.fine("target", "set", "billing", "rate=9")
    shown = cli.fine("target", "show", "billing", "--json").json
    assert shown["set"] == {"rate": 9.0}
    assert shown["effective"]["retry_budget"] == 0.2
    assert "retry_budget" in cli.fine("target", "show", "billing").out


def test_status_says_who_paused_a_queue_and_what_is_left_of_an_objective(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE_ACTOR", "ada")
    cli.fine("enqueue", "send", "--queue", "mail")
    cli.fine("enqueue", "charge", "--queue", "payments")
    cli.fine("queue", "pause", "payments")
    cli.fine("queue", "set", "mail", "objective_s=30")
    told = cli.fine("status", "--json").json
    [pause] = told["pauses"]
    assert (pause["kind"], pause["name"]) == ("queue", "payments")
    assert pause["by"].startswith("ada (login:")
    [objective] = told["objectives"]
    assert (objective["queue"], objective["started"]) == ("mail", 0)
    assert objective["budget_left"] == 1.0
    shown = cli.fine("status").out
    assert "ada" in shown
    assert "100%" in shown


def test_a_target_that_nobody_knows_is_not_shown(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no target 'nosuch'" in cli.refused("target", "show", "nosuch")
    cli.fine("target", "show", "local")
    cli.fine("target", "show", "pull:payments")
    cli.fine("queue", "show", "nosuch")  # a queue is there as soon as a task names it
    file = tmp_path / "targets.toml"
    file.write_text('[nosuch]\nkind = "grpc"\nendpoints = ["127.0.0.1:1"]\n')
    monkeypatch.setenv("LATE_TARGETS", str(file))
    cli.fine("target", "show", "nosuch")


def test_a_name_that_nothing_knows_is_doubted(cli: Cli) -> None:
    cli.fine("enqueue", "charge", "--queue", "payments")
    ended = cli.fine("queue", "set", "paymnts", "rate=3")
    assert ended.err == (
        "note: queue paymnts is new: no knob of it was set, and it has no tasks; "
        "queues with tasks: payments\n"
    )
    assert cli.fine("queue", "pause", "paymnts").err == ""  # it has a knob
    assert cli.fine("queue", "pause", "payments").err == ""
    assert "target biling is new here" in cli.fine("target", "set", "biling", "rate=1").err
    assert cli.fine("target", "set", "local", "rate=1").err == ""


def test_a_bound_that_nobody_counts_for_says_so(cli: Cli) -> None:
    cli.fine("enqueue", "charge", "--queue", "payments")
    ended = cli.fine("queue", "set", "payments", "max_backlog=5", "key_backlog=2")
    assert ended.err == (
        "note: no worker is alive, and a worker counts: until one does, max_backlog and "
        "key_backlog cannot refuse\n"
    )
    assert cli.fine("queue", "set", "payments", "max_backlog=default").err == ""


def test_a_queue_that_never_was_is_not_paused_without_force(cli: Cli) -> None:
    said = cli.refused("queue", "pause", "paymnts")
    assert "no queue 'paymnts'" in said
    assert "--force pauses it all the same" in said
    assert cli.fine("knobs").out == "Knobs: none\n"
    cli.fine("queue", "pause", "paymnts", "--force")
    cli.fine("queue", "resume", "paymnts")
    cli.fine("queue", "pause", "paymnts")  # its changes tell of it


def test_a_queue_whose_tasks_are_all_done_can_be_paused(cli: Cli) -> None:
    app = late.App(cli.url)

    @app.task(queue="mail")
    def send() -> None: ...

    with connect(cli.url) as tx:
        send.enqueue(tx)
    assert drain(app) == {"done": 1}
    with Control(cli.url) as control:
        assert control.status.read().queues == ()
    cli.fine("queue", "pause", "mail")


def test_a_doubt_that_cannot_be_looked_into_does_not_undo_the_change(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE_TARGETS", "/no/such/file.toml")
    assert cli.fine("target", "pause", "billing").err == ""
    assert "billing" in cli.fine("knobs").out


def test_a_dry_run_changes_nothing(cli: Cli) -> None:
    said = cli.fine("target", "set", "billing", "concurrency=4", "--dry-run").out
    assert "would go from default to 4" in said
    assert "rollback" not in said
    assert cli.fine("knobs").out == "Knobs: none\n"


def test_what_is_wrong_is_one_line(cli: Cli) -> None:
    assert "rate is given twice" in cli.refused("queue", "set", "payments", "rate=3", "rate=4")
    assert "owner= has no value" in cli.refused("queue", "set", "payments", "owner=")
    assert "severity is page or ticket, got 'high'" in cli.refused(
        "queue", "set", "payments", "severity=high"
    )
    assert "no such knob: 'speed'" in cli.refused("queue", "set", "payments", "speed=3")
    assert "rate must be" in cli.refused("queue", "set", "payments", "rate=-3")
    assert "of queues" in cli.refused("target", "set", "billing", "fair_key=tenant")
    assert "no change" in cli.refused("knobs", "rollback", "x")


def _charge() -> None: ...


def test_a_queue_that_nobody_uses_is_deleted(cli: Cli) -> None:
    cli.fine("queue", "set", "payments", "rate=50")
    task_id = cli.fine("enqueue", "charge", "--queue", "payments", "--json").json["task_id"]
    assert "1 waiting" in cli.fine("queue", "delete", "payments", "--dry-run").out
    assert "1 waiting" in cli.refused("queue", "delete", "payments", "--yes", "--force")
    cli.fine("cancel", task_id)
    app = late.App(cli.url)
    app.task(queue="payments", name="charge")(_charge)
    drain(app)
    told = cli.fine("queue", "delete", "payments", "--dry-run", "--json").json
    assert (told["refused"], told["dry_run"], told["knobs"]) == (None, True, {"rate": 50.0})
    assert "--yes" in cli.refused("queue", "delete", "payments")
    said = cli.fine("queue", "delete", "payments", "--yes").out
    assert "rate=50" in said
    assert cli.fine("knobs", "--json").json == {"knobs": []}
    cli.fine("knobs", "rollback", said.split("late knobs rollback ")[1].strip())
    assert cli.fine("queue", "show", "payments", "--json").json["set"] == {"rate": 50.0}


def test_a_group_is_created_with_a_highest_age(cli: Cli) -> None:
    create = ("group", "create", "quick", "--start-from", "now", "--max-age")
    assert "max_age_s" in cli.refused(*create, "0.5s")
    assert cli.fine(*create, "6h", "--json").json["max_age_s"] == 21_600.0
    assert "6h" in cli.fine("group", "show", "quick").out
    both = cli.fine("group", "set", "quick", "max_age=1d", "objective_s=60", "--json").json
    assert (both["max_age_s"], both["objective_s"]) == (86_400.0, 60.0)
    cli.fine("group", "set", "quick", "max_age=default", "--json")
    assert cli.fine("group", "show", "quick", "--json").json["max_age_s"] is None


def test_a_group_gets_an_objective(cli: Cli) -> None:
    assert cli.fine("group", "set", "default", "objective=1m", "--json").json["objective_s"] == 60.0
    assert "1m 0s" in cli.fine("group", "show", "default").out
    [judged] = cli.fine("status", "--json").json["objectives"]
    assert (judged["group"], judged["queue"], judged["objective_s"]) == ("default", "", 60.0)
    assert "Objectives" in cli.fine("status").out
    shown = cli.fine("group", "set", "default", "objective_s=default", "--json").json
    assert shown["objective_s"] is None
    twice = ["objective=1m", "objective_s=3"]
    for words in (["objective_s"], ["nope=1"], twice, ["objective_s=0"], ["objective_s=x"]):
        cli.refused("group", "set", "default", *words)
    assert "no consumer group" in cli.refused("group", "set", "nosuch", "objective_s=3")
