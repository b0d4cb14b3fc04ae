"""`late tasks`, from the command line of an operator."""

from __future__ import annotations

from late.control import Control
from tests.conformance.kit import task
from tests.integration.control_kit import insert
from tests.unit.cli_kit import Cli


def put(cli: Cli) -> list[str]:
    """Three tasks of two shards."""
    made = [task(n % 2, queue="payments", name="charge") for n in range(3)]
    insert(cli.url, *made)
    return [each.task_id for each in made]


def test_tasks_by_their_state(cli: Cli) -> None:
    sent = put(cli)
    page = cli.fine("tasks", "list", "logged", "--limit", "2", "--json").json
    assert (page["state"], page["stopped"], len(page["tasks"])) == ("logged", False, 2)
    assert "payload" not in page["tasks"][0]
    rest = cli.fine("tasks", "list", "logged", "--after", page["after"], "--json").json
    assert (len(rest["tasks"]), rest["after"]) == (1, None)
    assert {each["task_id"] for each in page["tasks"] + rest["tasks"]} == set(sent)
    ended = cli.fine("tasks", "list", "logged", "--queue", "payments", "--limit", "2")
    assert "more: --after " in ended.err
    assert "payments" in ended.out
    assert "none" in cli.fine("tasks", "list").out, "nothing runs"
    assert cli.fine("tasks", "list", "logged", "--name", "nobody").out.strip().endswith("none")
    assert "'lost'" in cli.refused("tasks", "list", "lost")
    assert "no end of a page" in cli.refused("tasks", "list", "logged", "--after", "x")
    assert "'never'" in cli.refused("tasks", "list", "logged", "--group", "never")


def test_a_rehearsal_counts_by_name(cli: Cli) -> None:
    insert(cli.url, *[task(0, name=name) for name in "aabcdefg"])
    told = cli.fine("tasks", "cancel", "logged", "--all", "--dry-run").out
    assert told.startswith("would cancel 8 tasks (2 a, 1 b, 1 c, 1 d, 1 e, 2 other names)\n")
    moved = cli.fine("tasks", "cancel", "logged", "--all", "--dry-run", "--json").json
    assert moved["names"] == {"a": 2} | dict.fromkeys("bcdefg", 1)


def test_all_tasks_that_match_are_cancelled_or_rescheduled(cli: Cli) -> None:
    sent = put(cli)
    for words in (("cancel", "logged"), ("reschedule", "logged", "--in", "1h")):
        assert "which tasks?" in cli.refused("tasks", *words)
        assert "which tasks?" in cli.refused("tasks", *words, "--all", "--queue", "payments")
    told = cli.fine("tasks", "cancel", "logged", "--queue", "payments", "--dry-run").out
    assert told.startswith("would cancel 3 tasks (3 charge)\n")
    assert sent[0] in told
    assert "give --yes" in cli.refused("tasks", "cancel", "logged", "--all")
    moved = cli.fine("tasks", "reschedule", "logged", "--id", sent[1], "--in", "1h", "--json").json
    assert (moved["count"], moved["task_ids"]) == (1, [sent[1]])
    told = cli.fine("tasks", "cancel", "logged", "--all", "--yes").out
    assert told == "asked to cancel 3 tasks (3 charge)\n"
    with Control(cli.url) as control:
        told = [each.action for each in control.audit.entries(subject="tasks:default")]
        assert told == ["tasks.cancel", "tasks.reschedule"]
    assert "--at or --in" in cli.refused("tasks", "reschedule", "logged", "--all")
    assert "late dead redrive" in cli.refused("tasks", "cancel", "dead", "--all", "--yes")
