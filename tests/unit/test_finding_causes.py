"""Findings that follow from others: their cause, and the command that helps against it."""

from __future__ import annotations

from typing import Any

import msgspec

from late.control.analyze.report import Pair
from late.control.findings.findings import findings
from late.control.findings.model import Finding
from late.control.status.disk import Disk
from late.control.status_views import Burn, Pause
from late.control.views import Count, SuspectTask
from late.model.worker_report import Failing, OutageReport, Run, ScheduleSlips, SilentConsumer
from late.tailer.placement import announced
from tests.unit.test_findings import TASK, objective, reported, stalled, target, with_reports
from tests.unit.test_web_views import NOW_US, WORKER, group, seen, shard


def test_a_group_that_is_behind_names_the_cause_and_the_command_that_helps() -> None:
    behind = group(lagging=True, lag_s=900.0)
    look = seen(groups=(behind,))
    cause, effect = findings(with_reports(look, reported(targets=(target(),))))
    assert (cause.what, effect.what) == ("Target bank fails", "Group default lags")
    assert effect.detail.endswith(" It may follow from: Target bank fails.")
    assert effect.command == cause.command
    [alone] = findings(look)
    assert "follows" not in alone.detail


def test_an_outage_of_tasks_that_conflict_is_told_after_the_conflict() -> None:
    outage = OutageReport("default", "ledger", "pay", 1, "DeadlockDetected: one\\nof two")
    tags = ("late-foreground:pay", "late-foreground:refund")
    pair = Pair(tags, 60.0, 20, {"deadlock": 20}, {}, 1, [], [], ["take the rows in one order"])
    conflicts = msgspec.structs.replace(seen().conflicts, pairs=[pair], for_s=600.0)
    look = msgspec.structs.replace(seen(), live_conflicts=conflicts)
    cause, effect = findings(with_reports(look, reported(outages=(outage,))))
    assert (cause.level, effect.level) == ("bad", "bad")
    assert cause.what == " and ".join(tags).join(("Transactions ", " are in each other's way"))
    assert "The last error: DeadlockDetected: one of two." in effect.detail
    assert effect.detail.endswith(f"It follows from: {cause.what}.")
    assert effect.command == "late analyze --seconds 30"
    [milder] = findings(look)
    assert milder.level == "warn"


def test_tasks_that_fail_name_the_target_or_the_consumer_they_fail_by() -> None:
    pace = msgspec.structs.replace(seen().signals["default"], rate=10.0, failed=8.0)
    failing = msgspec.structs.replace(
        seen(groups=(group(),)), signals={"default": pace}, paces={("default", "pay"): pace}
    )
    last = Failing("default", "pay", "charge", "HttpError: 500", NOW_US)
    calls = with_reports(failing, reported(targets=(target(),), failing=(last,)))
    silent = with_reports(failing, reported(silent=(SilentConsumer("pay", "c1", 4),)))
    for look, what in ((calls, "Target bank fails"), (silent, "Consumer c1 does not answer")):
        cause, effect = findings(look)
        assert (cause.what, effect.what) == (what, "Tasks of queue pay (default) fail")
        assert (cause.level, effect.level) == ("bad", "bad")
        assert effect.detail.endswith(f" It follows from: {what}.")
        assert effect.command == cause.command
    [alone] = findings(with_reports(failing, reported(failing=(last,))))
    assert "follows" not in alone.detail


def test_what_holds_a_group_up_is_named_by_what_is_late() -> None:
    unowned = group(stale_s=900.0)
    cause, effect = findings(seen(groups=(unowned,), shards=(shard(owner_live=False),)))
    assert cause.what == "Shards of default are not worked"
    assert effect.detail.endswith(" It may follow from: Shards of default are not worked.")
    slips = ScheduleSlips("minutely", skipped=3, at_us=NOW_US)
    cause, effect = findings(with_reports(seen(groups=(unowned,)), reported(slips=(slips,))))
    assert (cause.level, effect.command) == ("warn", cause.command)
    disk = Disk(2**30, 2**40)
    [full, alone] = findings(msgspec.structs.replace(seen(groups=(unowned,)), disk=disk))
    assert full.what == "The disk of the database is nearly full"
    assert "follow" not in alone.detail, "tasks run while there is room"
    full = msgspec.structs.replace(disk, free=1_000)
    [found] = findings(msgspec.structs.replace(seen(), disk=full))
    assert found.what == "The disk of the database is full"
    slow = msgspec.structs.replace(seen().signals["default"], backlog=500, rate=1.0)
    look = msgspec.structs.replace(seen(groups=(unowned,)), signals={"default": slow})
    assert "What helps: more tasks at once" in findings(look)[0].detail
    _, effect = findings(with_reports(look, reported(slips=(slips,))))
    assert "What helps" not in effect.detail, "what helps against the cause helps"


def test_each_kind_of_task_that_does_not_end_is_named() -> None:
    def stuck(task: str, number: int) -> Run:
        return Run("default", "mail", task, TASK, NOW_US - number * 1_000_000)

    runs = (*(stuck("send", n) for n in (40, 30, 20, 10)), stuck("fetch", 5))
    [found] = findings(with_reports(seen(), stalled(stuck=runs)))
    assert (
        f" send of queue mail (task {TASK}) runs for 40 s, and 3 more of it;"
        f" fetch of queue mail (task {TASK}) runs for 5.0 s. "
    ) in found.detail
    many = tuple(stuck(f"t{n}", n) for n in range(5))
    [found] = findings(with_reports(seen(), stalled(stuck=many)))
    assert "; and 2 other kinds of task. " in found.detail


def test_shards_without_an_owner_are_explained_by_workers_of_other_lanes() -> None:
    def found(*versions: str, **changes: Any) -> Finding:
        workers = tuple(msgspec.structs.replace(WORKER, version=each) for each in versions)
        alone = shard(1024, owner_live=False, lane="bulk", **changes)
        look = seen(groups=(group(),), shards=(shard(), alone), workers=workers)
        [finding] = findings(look)
        return finding

    bulk, mail = (announced("1", lanes=[name]) for name in ("bulk", "mail"))
    quiet, loud = found(mail), found(mail, lag=Count(7), in_flight=2)
    assert quiet.level == "warn"
    assert quiet.what == "No worker serves lane bulk of group default"
    assert quiet.detail == "1 of 2 shards have no live owner. 0 tasks wait there."
    assert loud.level == "bad"
    assert loud.detail.endswith(" 9 tasks wait there.")
    assert loud.command == "late worker MODULE:APP --group default --lanes bulk"
    for versions in ((mail, announced("1")), (mail, bulk)):
        other = found(*versions)
        assert (other.level, other.command) == ("bad", "late status --owners")
        assert "lane" not in other.detail, "somebody serves it, and has not taken it"


def test_a_paused_schedule_is_not_said_to_skip() -> None:
    slips = (ScheduleSlips("tick", skipped=3, at_us=NOW_US - 60_000_000),)
    look = with_reports(seen(), reported(slips=slips))
    [found] = findings(look)
    assert found.what == "Schedule tick skips ticks"
    status = msgspec.structs.replace(look.status, pauses=(Pause("schedule", "tick"),))
    assert findings(msgspec.structs.replace(look, status=status)) == []


def test_tasks_that_ran_beside_one_death_are_one_finding() -> None:
    def told(*deaths: int) -> list[Finding]:
        suspects = tuple(SuspectTask("default", 0, f"task-{n}", d) for n, d in enumerate(deaths))
        status = msgspec.structs.replace(seen().status, suspects=suspects)
        return findings(msgspec.structs.replace(seen(), status=status))

    [beside] = told(*[1] * 7)
    assert (beside.level, beside.what) == ("warn", "A worker died under one of 7 tasks")
    assert "task-0, task-1, task-2, task-3, task-4 and 2 more. Most are innocent" in beside.detail
    killer, others = told(3, 1, 1)
    assert (killer.level, killer.what) == ("bad", "Workers die under task task-0")
    assert others.what == "A worker died under one of 2 tasks"


def test_a_cause_is_of_a_queue_that_the_group_reads() -> None:
    """A consumer of another queue, with a command that pauses it, holds nothing up here."""
    silent = reported(silent=(SilentConsumer("pay", "c1", 4),))
    teamc = group(name="teamc", queues=("alpha",), stale_s=900.0)
    for name, queues in (("teamc", None), ("teamc", ("alpha", "pay"))):
        reader = msgspec.structs.replace(teamc, name=name, queues=queues)
        _, effect = findings(with_reports(seen(groups=(reader,)), silent))
        assert "It may follow from: Consumer c1 does not answer." in effect.detail
    _, effect = findings(with_reports(seen(groups=(teamc,)), silent))
    assert effect.what == "Group teamc is stale"
    assert "follow" not in effect.detail
    elsewhere = (
        reported(stalled=("slots",), stalled_since_us=NOW_US),
        reported(targets=(target(),)),
        reported(outages=(OutageReport("default", "ledger", "pay", 1, "OSError"),)),
    )
    for each in elsewhere:
        found = findings(with_reports(seen(groups=(teamc,)), each))
        assert [one for one in found if "follow" in one.detail] == [], "of the group default"


def test_where_nobody_works_a_group_that_is_its_only_cause() -> None:
    lags = group(name="teamc", workers=0, lag=Count(7), lag_s=900.0, lagging=True)
    alone = msgspec.structs.replace(shard(owner_live=False), group="teamc")
    look = with_reports(
        seen(groups=(lags,), shards=(alone,)), reported(silent=(SilentConsumer("pay", "c1", 4),))
    )
    effect = next(each for each in findings(look) if each.what == "Group teamc lags")
    assert effect.detail.endswith(" It may follow from: Nobody works group teamc.")
    assert effect.command == "late worker MODULE:APP --group teamc"


def test_an_objective_that_nothing_started_under_is_told_by_the_oldest_task() -> None:
    told = tuple(Burn(window, 15.0) for window in ("1h", "5m"))
    idle = msgspec.structs.replace(objective(), overdue_s=540.0, burns=told)
    status = msgspec.structs.replace(seen().status, objectives=(idle,))
    [found] = findings(msgspec.structs.replace(seen(), status=status))
    assert found.detail.startswith(
        "Nothing started in 1h. The oldest task waits for 9.5 min, 9.0 min longer than the"
        " objective: 15% of that time counts as late; 1% may be."
    )
