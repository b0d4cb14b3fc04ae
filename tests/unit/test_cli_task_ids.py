"""Many tasks by a file of ids, and names that nothing tells of."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from late.cli import task_ids
from late.control import Control
from late.control.dead_letters import filter as filters
from late.model.ids import new_id
from late.web.models.last_hour import SHOWN_MAX, difference
from tests.conformance.kit import dead, record, task
from tests.integration.control_kit import insert
from tests.unit.cli_kit import Cli
from tests.unit.test_cli_task_lists import put
from tests.unit.test_cli_tasks import bury


def test_tasks_of_a_file_are_cancelled_or_rescheduled(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = put(cli)
    (tmp_path / "ids").write_text(f"{sent[1]}\n\n  {sent[0]} \n{sent[1]}\n")
    moved = cli.fine("tasks", "reschedule", "logged", "--ids", "ids", "--in", "1h", "--json").json
    assert moved["task_ids"] == [sent[1], sent[0]]
    words = ("tasks", "cancel", "unfinished", "--id", sent[2], "--ids", "-")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{sent[0]}\n"))
    assert "this cancels 2 tasks: give --yes" in cli.refused(*words)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{sent[0]}\n"))
    assert cli.fine(*words, "--yes").out == "asked to cancel 2 tasks\n"
    assert "which tasks?" in cli.refused("tasks", "cancel", "logged", "--all", "--ids", "ids")
    assert "which tasks?" in cli.refused("tasks", "cancel", "logged", "--name", "a", "--ids", "ids")


def test_dead_letters_of_a_file_are_redriven_or_purged(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "IDS_MAX", 2)
    letters = [record(position=n + 1, name="mail" if n < 4 else "other") for n in range(7)]
    bury(cli.url, *map(dead, letters))
    ids = [each.task_id for each in letters]
    (tmp_path / "ids").write_text("\n".join([*ids[:5], new_id(0), ids[4]]))
    words = ("dead", "redrive", "--ids", "ids", "--name", "mail")
    dry = cli.fine(*words, "--dry-run", "--json").json
    assert (dry["count"], set(dry["task_ids"])) == (4, set(ids[:4]))
    assert cli.fine(*words, "--dry-run", "--limit", "3").out.startswith("would redrive 3 dead")
    assert cli.fine(*words, "--limit", "3", "--rate", "10").out == "redriven 3 dead letters\n"
    assert "this deletes 2 dead letters" in cli.refused("dead", "purge", "--ids", "ids")
    assert cli.fine("dead", "purge", "--ids", "ids", "--yes").out == "deleted 2 dead letters\n"
    left = cli.fine("dead", "list", "--json").json["dead"]
    assert {each["task_id"] for each in left} == set(ids[5:])
    assert "not both" in cli.refused("dead", "purge", "--ids", "ids", "--all", "--yes")
    with Control(cli.url) as control:
        found = [each.after for each in control.audit.entries(subject="dead:*")]
    assert any(ids[4] in (after or "") for after in found), "the audit has the ids"


def test_a_redrive_says_under_how_many_workers_died(cli: Cli) -> None:
    letters = [dead(record(position=n + 1, name="mail")) for n in range(3)]
    killer = msgspec.structs.replace(letters[0], reason="killed_worker")
    bury(cli.url, killer, *letters[1:])
    words = ("dead", "redrive", "--name", "mail")
    warning = "under 1 of them workers died (killed_worker)"
    assert warning in cli.fine(*words, "--dry-run").err
    assert warning not in cli.fine(*words, "--reason", "failed", "--dry-run").err
    assert warning in cli.fine(*words, "--reason", "killed_worker").err


def test_a_file_that_is_no_list_of_ids_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (("tasks", "cancel", "logged"), ("dead", "redrive")):
        (tmp_path / "ids").write_text(f"{new_id(0)}\n\n17\n")
        assert "ids, line 3: " in cli.refused(*command, "--ids", "ids")
        (tmp_path / "ids").write_text("\n \n")
        assert "ids has no task id" in cli.refused(*command, "--ids", "ids")
        assert "No such file" in cli.refused(*command, "--ids", "nowhere")
    monkeypatch.setattr(task_ids, "IDS_MAX", 2)
    (tmp_path / "ids").write_text("\n".join(new_id(0) for _ in range(3)))
    assert "more than 2 ids" in cli.refused("dead", "purge", "--ids", "ids", "--yes")


def test_a_name_that_nothing_tells_of_is_refused(cli: Cli) -> None:
    insert(cli.url, task(0, name="mail", queue="letters"))
    bury(cli.url, dead(record(name="charge", queue="payments")))
    for words in (
        ("dead", "redrive"), ("dead", "redrive", "--dry-run"), ("dead", "purge"),
        ("tasks", "cancel", "parked"), ("tasks", "reschedule", "parked", "--in", "1h"),
    ):  # fmt: skip
        assert "no queue 'nosuch'" in cli.refused(*words, "--queue", "nosuch")
        assert "no task 'nosuch'" in cli.refused(*words, "--name", "nosuch")
    # Those that are there, with nothing of theirs to do.
    for words in (("dead", "redrive"), ("dead", "purge", "--yes")):
        assert " 0 dead letters" in cli.fine(*words, "--queue", "letters").out
        assert " 0 dead letters" in cli.fine(*words, "--name", "mail").out
    for words in (("--queue", "payments"), ("--name", "charge")):
        told = cli.fine("tasks", "cancel", "parked", "--yes", *words).out
        assert told == "asked to cancel 0 tasks\n"


def test_a_long_filter_is_cut_on_the_screen() -> None:
    ids = ",".join(f'"{new_id(0)}"' for _ in range(20))
    shown = difference(None, f'{{"count":20,"filter":{{"task_ids":[{ids}]}}}}')
    assert shown.startswith("count 20, filter ")
    assert len(shown) < SHOWN_MAX + 40
