"""enqueue, status, show, dead and schedule, from the command line of an operator."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from late.cli.database import _drain as drain_line
from late.control import Control
from late.control.dead_letters import dry_run as rehearsal
from late.control.views import DrainView
from late.model.ids import new_id
from late.model.task import AttemptError, DeadLetter, Schedule
from late.store import open_store
from late.store.base import Store
from tests.conformance.kit import dead, own, record
from tests.integration.control_kit import execute
from tests.support import sqlite
from tests.unit.cli_kit import Cli

SERVICE = """
import late
from datetime import timedelta

app = late.App("{url}")
nothing = 1

@app.task(queue="payments")
def charge(trip: int, amount: float = 1.0) -> None: ...
"""


@pytest.fixture
def service(cli: Cli, tmp_path: Path) -> Any:
    """A service's module in the current folder, gone from memory afterwards."""
    (tmp_path / "shop_service.py").write_text(SERVICE.format(url=cli.url))
    (tmp_path / "shop_broken.py").write_text("import a_package_that_nobody_has\n")
    (tmp_path / "shop_failing.py").write_text("raise ValueError('their own defect')\n")
    path = list(sys.path)
    yield "shop_service:app"
    sys.path[:] = path
    for name in ("shop_service", "shop_broken", "shop_failing"):
        sys.modules.pop(name, None)


def in_store(url: str, work: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        store = open_store(url)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def bury(url: str, *letters: DeadLetter) -> None:
    async def work(store: Store) -> None:
        await (await own(store, 0)).settle(dead=letters)

    in_store(url, work)


# --- enqueue and show


def test_enqueue_by_the_services_own_app(cli: Cli, service: str) -> None:
    done = cli.fine("enqueue", "charge", "--app", service, "--args", '{"trip": 7}')
    task_id = done.out.strip()
    shown = cli.fine("show", task_id, "--payload", "--json").json
    assert (shown["name"], shown["queue"], shown["payload"]) == ("charge", "payments", '{"trip":7}')
    assert shown["groups"][0]["state"] == "logged"
    text = cli.fine("show", task_id).out
    assert shown["enqueued_at_us"] == shown["created_at_us"], "the older word stays for a version"
    assert "enqueued " in text
    assert "state  logged" in text
    assert '{"trip"' not in text


def test_enqueue_by_an_app_goes_where_the_shell_says(
    cli: Cli, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = sqlite.database(tmp_path / "elsewhere.db")
    ours = ("enqueue", "charge", "--app", service, "--args", '{"trip": 7}')
    monkeypatch.setenv("LATE_URL", elsewhere)
    there = cli.fine(*ours).out.strip()
    here = cli.fine(*ours, "--url", cli.url).out.strip()
    monkeypatch.delenv("LATE_URL")
    apps = cli.fine(*ours).out.strip()
    with Control(elsewhere) as control:
        assert control.tasks.show(there).name == "charge"
        assert control.tasks.show(here).name is None
    with Control(cli.url) as control:
        assert control.tasks.show(there).name is None
        assert control.tasks.show(here).name == control.tasks.show(apps).name == "charge"


def test_enqueue_with_every_option_and_only_a_url(cli: Cli) -> None:
    done = cli.fine(
        "enqueue", "send", "--url", cli.url, "--args", '{"to":"a"}', "--queue", "mail",
        "--delay", "2h", "--expires", "3h", "--priority", "-5", "--ordering-key", "k",
        "--unique-key", "u", "--header", "trace=t=1", "--header", "b=", "--json",
    )  # fmt: skip
    shown = cli.fine("show", done.json["task_id"], "--json").json
    assert (shown["name"], shown["queue"]) == ("send", "mail")
    assert shown["headers"] == {"trace": "t=1", "b": ""}
    assert shown["options"] == {
        "delay_us": 7_200_000_000, "expires_in_us": 10_800_000_000, "priority": -5,
        "ordering_key": "k", "unique_key": "u",
    }  # fmt: skip
    again = cli.fine("enqueue", "send", "--args", '{"to":"a"}', "--unique-key", "u")
    assert again.out.strip() == done.json["task_id"]
    assert "u" in cli.refused("enqueue", "send", "--args", '{"to":"b"}', "--unique-key", "u")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bad name",), "'bad name'"),
        (("x" * 129,), "task name"),
        (("late.cancel",), "reserved"),
        (("charge", "--queue", "late.control"), "reserved"),
        (("charge", "--args", "[1]"), "JSON object, got list"),
        (("charge", "--args", "{"), "--args is not JSON"),
        (("charge", "--args", '{"a": NaN}'), "--args is not JSON"),
        (("charge", "--args", "\ud800"), "--args is not JSON"),
        (("charge", "--delay", "soon"), "--delay 'soon'"),
        (("charge", "--delay", "400d"), "seconds"),
        (("charge", "--delay", "nan"), "--delay 'nan'"),
        (("charge", "--at", "2026-05-01T12:00:00"), "no time zone"),
        (("charge", "--at", "9999-01-01T00:00:00Z"), "366 days"),
        (("charge", "--at", "1970-01-01T00:00Z", "--delay", "1s"), "not both"),
        (("charge", "--expires", "0s"), "expires"),
        (("charge", "--priority", "101"), "priority"),
        (("charge", "--queue", "a b"), "'a b'"),
        (("charge", "--ordering-key", ""), "ordering_key"),
        (("charge", "--header", "nothing"), "KEY=VALUE"),
        (("charge", "--header", "a=1", "--header", "a=2"), "given twice"),
    ],
)
def test_enqueue_refuses_bad_input_and_writes_nothing(
    cli: Cli,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert words in cli.refused("enqueue", *arguments)
    assert cli.fine("status", "--json").json["queues"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("refund", "--app", "shop_service:app"), "no task 'refund'; known: charge"),
        (("charge", "--app", "shop_service:app"), "trip"),
        (("charge", "--app", "shop_service:app", "--args", '{"trip":"x"}'), "int"),
        (("charge", "--app", "shop_service:app", "--args", '{"trip":1,"a":2}'), "'a'"),
        (("charge", "--app", "shop_service:app", "--queue", "mail"), "'payments'"),
        (("charge", "--app", "shop_service:nothing"), "is a int, not a late.App"),
        (("charge", "--app", "shop_service:absent"), "has no 'absent'"),
        (("charge", "--app", "no_such_module"), "no module 'no_such_module'"),
        (("charge", "--app", "not a module"), "expected MODULE:APP"),
        (("charge", "--app", ""), "expected MODULE:APP"),
    ],
)
def test_enqueue_by_an_app_checks_against_it(
    cli: Cli,
    service: str,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert words in cli.refused("enqueue", *arguments)


@pytest.mark.parametrize(
    ("module", "says"),
    [("shop_broken", "a_package_that_nobody_has"), ("shop_failing", "their own defect")],
)
def test_a_defect_of_the_service_keeps_its_traceback(
    cli: Cli, service: str, module: str, says: str
) -> None:
    """What is broken inside their module is theirs, so the frames of `late` are no help."""
    for command in ("worker", "check"):
        ended = cli(command, f"{module}:app")
        assert ended.code == 2
        files = [line for line in ended.err.splitlines() if line.lstrip().startswith("File ")]
        assert f"{module}.py" in files[0]
        assert not any("/late/cli/" in file or "importlib" in file for file in files)
        assert ended.err.splitlines()[-1].startswith(f"late: {module} cannot be imported: ")
        assert says in ended.err.splitlines()[-1]


def test_worker_refuses_what_it_cannot_run(cli: Cli, service: str) -> None:
    assert "no module 'nowhere'" in cli.refused("worker", "nowhere:app")
    assert "expected a number" in cli.refused("worker", service, "--set", "window=big")
    assert "KEY=VALUE" in cli.refused("worker", service, "--set", "window")
    assert cli("worker", service, "--concurrency", "0").code == 2
    assert cli("worker", service, "--wake-port", "70000").code == 2
    everywhere = ("--wake-port", "0", "--set", "wake_host=0.0.0.0")
    assert "LATE_WAKE_SECRET" in cli.refused("worker", service, *everywhere)


def test_what_a_group_begins_behind_is_not_said_to_have_ended(cli: Cli, service: str) -> None:
    done = cli.fine("enqueue", "charge", "--app", service, "--args", '{"trip": 7}')
    task_id = done.out.strip()
    cli.fine("group", "create", "audit", "--start-from", "now")
    states = {g["group"]: g["state"] for g in cli.fine("show", task_id, "--json").json["groups"]}
    assert states == {"audit": "settled", "default": "logged"}
    assert "began or was reset behind it" in cli.fine("cancel", task_id, "--group", "audit").err
    assert cli.fine("cancel", task_id).err == ""


def test_a_group_that_is_not_there_knows_no_task(cli: Cli, service: str) -> None:
    """The default one is there before a worker has come; others by a row or by a lease."""
    done = cli.fine("enqueue", "charge", "--app", service, "--args", '{"trip": 7}')
    task_id = done.out.strip()
    leased = "insert into late_lease (consumer_group, shard_id, epoch) values ('older', 7, 1)"
    for statement in ("delete from late_group", leased):
        execute(cli.url, statement)
    with Control(cli.url) as control:

        def state(group: str) -> str:
            [found] = control.tasks.show(task_id, group=group).groups
            return found.state

        assert (state("default"), state("older"), state("typo")) == ("logged", "logged", "unknown")


def test_show_of_nothing_is_a_finding(cli: Cli) -> None:
    ended = cli("show", new_id(3), "--json")
    assert (ended.code, ended.json["groups"][0]["state"]) == (1, "unknown")
    missed = cli("show", new_id(3))
    assert (missed.code, "--everywhere" in missed.err) == (1, True)
    searched = cli("show", new_id(3), "--everywhere")
    assert (searched.code, "--everywhere" in searched.err) == (1, False)
    assert "not a task id: '17'" in cli.refused("show", "17")


# --- status and the rest of looking


def test_status_as_json_has_stable_keys(cli: Cli) -> None:
    cli.fine("enqueue", "count", "--queue", "mail")
    found = cli.fine("status", "--json").json
    assert found.keys() == {
        "now_us", "schema_version", "deployment", "queues", "shards", "workers",
        "groups", "unhandled", "limited", "limited_keys", "suspects", "pauses", "objectives",
        "as_of",
    }  # fmt: skip
    (queue,) = found["queues"]
    assert queue.keys() == {
        "group", "queue", "depth", "in_flight", "parked", "dead", "oldest_age_s", "held", "killed",
    }  # fmt: skip
    assert queue["depth"] == {"n": 1, "capped": False}
    assert found["shards"][0].keys() == {
        "group", "shard_id", "owner", "owner_live", "epoch", "seq", "lag", "lag_s", "in_flight",
        "settled_at_us", "stale_s", "old", "lane",
    }  # fmt: skip
    table = cli.fine("status")
    assert "mail" in table.out
    assert "Workers: none" in table.out
    assert cli("status", "--limit", "0").code == 2


def test_tables_show_no_control_characters_and_read_no_markup(cli: Cli) -> None:
    error = AttemptError(1, 5, "w", "boom \x1b[31mred\x1b[0m [bold]text[/bold]")
    bury(cli.url, dead(errors=(error,)))
    for command in (("dead", "list"), ("dead", "show", _only_dead(cli))):
        out = cli.fine(*command).out
        assert "\x1b" not in out
        assert "[bold]text[/bold]" in out


def _only_dead(cli: Cli) -> str:
    (letter,) = cli.fine("dead", "list", "--json").json["dead"]
    return str(letter["task_id"])


def test_what_an_old_width_waits_for_is_said_in_words() -> None:
    def said(**fields: Any) -> str:
        return drain_line("default", DrainView(0, 8, "draining", **fields))

    assert said() == "default: 8 shards of version 0 are draining: no group has looked yet"
    assert said(left={"b": 2, "a": 3, "c": 0}, keys=5).endswith(
        "are draining: of them 3 in group a, 2 in group b, with 5 ordering keys"
    )
    assert said(left={"a": 0}).endswith("are drained, the next look forgets them")


def test_shards_and_groups(cli: Cli) -> None:
    lane = {"name": "default", "first_shard": 0, "shards": 8, "version": 0, "draining": []}
    assert cli.fine("shards", "--json").json == {"lanes": [lane]}
    assert "12" in cli.fine("shards", "--set", "12").out
    assert "cannot shrink" in cli.refused("shards", "--set", "11")
    assert "no lane 'bulk'" in cli.refused("shards", "--lane", "bulk", "--set", "9")
    assert "give one of" in cli.refused("shards", "--set", "16", "--resize", "16")
    assert "no lane 'bulk'; known: default" in cli.refused("shards", "--lane", "bulk")
    assert "1024" in cli.fine("shards", "--lane", "bulk", "--create", "2").out
    assert "bulk" not in cli.fine("shards", "--lane", "bulk", "--remove").out
    assert "12 shards of version 0 are closing" in cli.fine("shards", "--resize", "4").out
    assert "use --resize" in cli.refused("shards", "--set", "16")
    assert "a moment ago" in cli.refused("shards", "--resize", "16")
    [lane] = cli.fine("shards", "--json").json["lanes"]
    assert (lane["shards"], lane["version"], lane["draining"][0]["state"]) == (4, 1, "closing")
    assert [g["name"] for g in cli.fine("groups", "--json").json["groups"]] == ["default"]
    assert "default" in cli.fine("groups").out


# --- dead letters


def test_dead_letters_from_list_to_redrive(cli: Cli) -> None:
    mail, bulk = record(queue="mail", payload=b'{"to":"a"}'), record(queue="bulk")
    error = AttemptError(2, 5, "w1", "Traceback\n  ...\nValueError: no such card")
    bury(cli.url, dead(mail, errors=(error,)), dead(bulk))
    assert "ValueError: no such card" in cli.fine("dead", "list", "--queue", "mail").out
    assert "mail" not in cli.fine("dead", "list", "--queue", "bulk", "--since", "1h").out
    assert cli.fine("dead", "list", "--until", "1h", "--json").json == {"dead": []}
    assert "Dead letters: none" in cli.fine("dead", "list", "--reason", "gave_up").out
    shown = cli.fine("dead", "show", mail.task_id, "--json", "--payload").json["dead"][0]
    assert (shown["payload"], shown["errors"][0]["attempt"]) == ('{"to":"a"}', 2)
    assert shown["enqueued_at_us"] == shown["created_at_us"]
    text = cli.fine("dead", "show", mail.task_id).out
    assert '{"to"' not in text
    assert "enqueued " in text
    assert cli("dead", "show", new_id(0)).code == 1

    dry = cli.fine("dead", "redrive", "--queue", "mail", "--dry-run")
    assert "would redrive 1 dead letter" in dry.out
    assert mail.task_id in dry.out
    assert len(cli.fine("dead", "list", "--json").json["dead"]) == 2
    assert cli.fine("dead", "redrive", "--id", mail.task_id).out == "redriven 1 dead letter\n"
    assert cli.fine("show", mail.task_id, "--json").json["groups"][0]["state"] == "parked"
    done = cli.fine("dead", "purge", "--all", "--yes", "--json").json
    assert done == {
        "count": 1, "dry_run": False, "task_ids": [bulk.task_id], "capped": False, "names": {},
    }  # fmt: skip


def test_a_dry_run_counts_to_a_bound_and_exactly_when_asked(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(cli.url, *(dead(record(position=n + 1)) for n in range(3)))
    monkeypatch.setattr(rehearsal, "LOOKED", 2)
    monkeypatch.setattr(rehearsal, "IDS_SHOWN", 2)  # it says no less than it names
    dry = cli.fine("dead", "redrive", "--all", "--dry-run")
    assert "would redrive at least 2 dead letters" in dry.out
    assert "2 dead letters were looked at; --exact counts all" in dry.err
    assert cli.fine("dead", "purge", "--all", "--dry-run", "--json").json["capped"] is True
    dry = cli.fine("dead", "redrive", "--all", "--dry-run", "--exact")
    assert "would redrive 3 dead letters" in dry.out
    assert "--exact" not in dry.err
    assert "deletes at least 2 dead letters" in cli.refused("dead", "purge", "--all")
    assert "deletes 3 dead letters" in cli.refused("dead", "purge", "--all", "--exact")
    assert "--exact is for --dry-run" in cli.refused("dead", "redrive", "--all", "--exact")
    assert len(cli.fine("dead", "list", "--json").json["dead"]) == 3


def test_dead_commands_refuse_what_is_not_clear(cli: Cli) -> None:
    bury(cli.url, dead())
    for command in ("purge", "redrive"):
        assert "give a filter" in cli.refused("dead", command)
        assert "not both" in cli.refused("dead", command, "--all", "--queue", "a")
        assert "'a b'" in cli.refused("dead", command, "--queue", "a b")
        assert "not a task id" in cli.refused("dead", command, "--id", "17")
        assert "--since 'x'" in cli.refused("dead", command, "--since", "x")
        assert "since must be" in cli.refused("dead", command, "--since", "1h", "--until", "2h")
        assert cli("dead", command, "--all", "--limit", "0").code == 2
    assert "deletes 1 dead letter for good: give --yes" in cli.refused("dead", "purge", "--all")
    assert len(cli.fine("dead", "list", "--json").json["dead"]) == 1


# --- schedules


def test_schedules_from_list_to_remove(cli: Cli) -> None:
    nightly = Schedule(
        "nightly", 3, "0 3 * * *", "Europe/Berlin", "all", 5, "skip", "reports", "report",
        b'{"secret":1}', None, 0, None,
    )  # fmt: skip
    assert cli.fine("schedule", "list").out == "Schedules: none\n"
    with Control(cli.url) as control:
        control.schedules.sync([nightly])
    out = cli.fine("schedule", "list").out
    assert all(word in out for word in ("nightly", "0 3 * * *", "Europe/Berlin", "all 5"))
    (found,) = cli.fine("schedule", "list", "--json").json["schedules"]
    assert (found["rule"], found["payload_bytes"], found["paused"]) == ("0 3 * * *", 12, False)
    assert "payload" not in found
    assert cli.fine("schedule", "pause", "nightly").out == "nightly: paused\n"
    assert "paused" in cli.fine("schedule", "list").out
    assert cli.fine("schedule", "resume", "nightly", "--json").json["paused"] is False
    task_id = cli.fine("schedule", "run", "nightly").out.strip()
    assert cli.fine("show", task_id, "--json").json["queue"] == "reports"
    assert cli.fine("schedule", "remove", "nightly").out == "nightly: removed\n"
    for command in ("pause", "resume", "run", "remove"):
        assert "no schedule 'nightly'; known: none" in cli.refused("schedule", command, "nightly")


def test_cancel_and_reschedule_say_what_they_ask(cli: Cli) -> None:
    task_id = new_id(3)
    assert task_id in cli.fine("cancel", task_id).out
    command = cli.fine("cancel", task_id, "--group", "default", "--json").json["command"]
    assert "late.cancel" in cli.fine("show", command).out
    assert task_id in cli.fine("reschedule", task_id, "--in", "15m").out
    assert "2031-05-01" not in cli.refused("reschedule", task_id, "--at", "2031-05-01T12:00Z")
    assert "both" in cli.refused("reschedule", task_id)
    assert "both" in cli.refused("reschedule", task_id, "--in", "1s", "--at", "2026-05-01T12:00Z")
    assert "not a task id" in cli.refused("cancel", "7")
    assert "not where its id says" in cli.fine("cancel", task_id).err
    waits = cli.fine("enqueue", "charge", "--delay", "1h").out.strip()
    assert cli.fine("cancel", waits).err == ""
    assert "no consumer group 'typo'" in cli.refused("cancel", waits, "--group", "typo")
    letter = dead(of=record(name="charge"))
    bury(cli.url, letter)
    assert "dead redrive" in cli.fine("reschedule", letter.record.task_id, "--in", "1s").err


def test_a_dead_letter_is_edited_and_sent_back(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    letter = dead(of=record(name="charge"), errors=(AttemptError(1, 9, "w-7", "KeyError: 'x'"),))
    bury(cli.url, letter)
    task_id = letter.record.task_id
    assert "w-7  KeyError" in cli.fine("dead", "show", task_id).out
    assert task_id in cli.fine("dead", "list", "--error", "KeyError").out
    assert task_id not in cli.fine("dead", "list", "--error", "ValueError").out
    edited = cli.fine("dead", "edit", task_id, "--payload", '{"trip": 8}')
    assert task_id in edited.out
    assert "a redrive before that would do so unedited" in edited.err
    monkeypatch.setattr("sys.stdin", io.StringIO('{"trip": 9}'))
    [command] = cli.fine("dead", "edit", task_id, "--payload", "-", "--json").json["commands"]
    assert "late.redrive" in cli.fine("show", command).out
    assert "JSON" in cli.refused("dead", "edit", task_id, "--payload", "trip=8")
    assert "no dead letter" in cli.refused("dead", "edit", new_id(0), "--payload", "{}")
    assert "redriven 1" in cli.fine("dead", "redrive", "--all", "--rate", "5").out
    assert "rate" in cli.refused("dead", "redrive", "--all", "--rate", "0")


def test_enqueue_says_what_a_taken_key_does(cli: Cli) -> None:
    def put(*words: str) -> tuple[str, ...]:
        return "enqueue", "greet", "--queue", "mail", "--unique-key", "k", *words

    first = cli.fine(*put("--unique-for", "1h")).out
    assert cli.fine(*put()).out == first
    assert "is held by task" in cli.refused(*put("--on-conflict", "reject"))
    said = cli.refused(*put("--delay", "99999d"))
    assert "delay must be 0..31622400 seconds" in said
    assert "on_conflict is one of" in cli.refused(*put("--on-conflict", "forget"))
    assert cli.fine(*put("--on-conflict", "replace")).out != first
