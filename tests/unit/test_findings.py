"""What is found in one look: what is wrong, its cause, and a command that helps."""

from __future__ import annotations

import re
import shlex
from typing import Any

import msgspec
import pytest

from late.autoscaler.keda.demand import Signals, TenantPace
from late.control.findings.findings import BURNS, findings
from late.control.findings.targets import parked_by_task, targets_of, waits
from late.control.status.disk import Disk
from late.control.status.locks import LockHolder
from late.control.status.snapshot import Snapshot
from late.control.status_views import Burn, ObjectiveView, Pause
from late.control.views import Count, LimitedTasks, QueueStatus, Reported, SuspectTask
from late.model import worker_report
from late.model.access.rights import Caller, Right
from late.model.queue_settings import QueueSettings
from late.model.worker_report import (
    OutageReport,
    Run,
    SilentConsumer,
    TargetReport,
    WorkerReport,
)
from late.observability.alerts import ALERTS
from late.web.access.rules import narrowed
from tests.unit.test_alerts import commands_of_late
from tests.unit.test_web_views import NOW_US, group, seen, shard

TASK = "0190a000-0000-7000-8000-000000000001"
OUT = Run("default", "pay", "charge", TASK, NOW_US - 45_000_000, 3, "consumer c1")
OUT_FIRST = msgspec.structs.replace(OUT, attempt=1)
STUCK = Run("default", "mail", "app.send", TASK, NOW_US - 300_000_000)


def target(**changes: Any) -> TargetReport:
    given: dict[str, Any] = {
        "kind": "http", "where": "https://bank/", "calls": 40, "failed": 24,
        "error": "HttpError: target bank: 500", "error_at_us": NOW_US - 2_000_000,
        "waiting": 7, "tasks": ("charge",),
    }  # fmt: skip
    return TargetReport("bank", **(given | changes))


def reported(*, number: int = 1, age_s: float = 1.0, live: bool = True, **changes: Any) -> Reported:
    told = WorkerReport(
        f"w{number}", f"host:{number}", ("default",), 15.0, slots=4, running=4, **changes
    )
    return Reported(told, NOW_US - round(age_s * 1e6), age_s, live)


def with_reports(found: Snapshot, *reports: Reported) -> Snapshot:
    return msgspec.structs.replace(found, reports=reports)


def stalled(number: int = 1, **changes: Any) -> Reported:
    given: dict[str, Any] = {
        "stalled": ("slots",), "stalled_since_us": NOW_US - 120_000_000, "stuck": (STUCK,),
    }  # fmt: skip
    return reported(number=number, **(given | changes))


def test_a_target_that_fails_is_named_with_its_rate_and_its_last_error() -> None:
    [found] = findings(with_reports(seen(), reported(targets=(target(),))))
    assert (found.level, found.what) == ("bad", "Target bank fails")
    assert found.detail == (
        "60% of its last 40 calls failed. The last error, 2.0 s ago: HttpError: target bank: 500. "
        "7 tasks wait for it: 7 in workers' memory, 0 parked. What helps: mend it, or "
        "tell those who run it; late then goes on by itself."
    )
    assert found.command == "late target list --check"


def test_an_open_circuit_says_since_when_where_and_what_waits_in_the_database_too() -> None:
    opened = target(calls=20, failed=20, open_since_us=NOW_US - 90_000_000)
    status = msgspec.structs.replace(
        seen().status, limited=(LimitedTasks("default", "payments", "charge", Count(1_000, True)),)
    )
    look = with_reports(
        msgspec.structs.replace(seen(), status=status),
        reported(targets=(opened,)), reported(number=2, targets=(target(calls=0, failed=0),)),
    )  # fmt: skip
    [found] = findings(look)
    assert found.what == "Target bank is away"
    assert "Its circuit is open for 1.5 min, in 1 of 2 workers" in found.detail
    assert (
        "1,014+ tasks wait for it: 14 in workers' memory, 1,000+ parked. They lose no attempt. "
        "What helps"
    ) in found.detail
    [view] = targets_of(look.reports, parked_by_task(look))
    assert (view.workers, view.open_in, view.tasks) == (2, 1, ("charge",))
    assert waits(view) in found.detail, "the screens say the same as the finding"


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"calls": 4, "failed": 4}, None),
        ({"calls": 100, "failed": 24}, None),
        ({"calls": 100, "failed": 25}, "warn"),
        ({"calls": 100, "failed": 50}, "bad"),
    ],
)
def test_few_failures_are_no_finding(changes: dict[str, int], level: str | None) -> None:
    found = findings(with_reports(seen(), reported(targets=(target(**changes),))))
    assert [each.level for each in found] == ([level] if level else [])


def test_a_report_of_long_ago_says_nothing_of_a_target() -> None:
    assert findings(with_reports(seen(), reported(age_s=46.0, targets=(target(),)))) == []


def test_an_outage_of_what_handlers_need_is_named_with_its_error_and_what_waits() -> None:
    """Handlers that call a service by themselves have no target that could be named."""
    first = OutageReport("default", "hooks", "notify", NOW_US - 240_000_000)
    error = "HTTPStatusError: 500 Internal Server Error"
    later = OutageReport(
        "default", "hooks", "notify", NOW_US - 90_000_000, error, NOW_US - 1_000_000
    )
    status = msgspec.structs.replace(
        seen().status,
        limited=(
            LimitedTasks("default", "hooks", "notify", Count(20)),
            LimitedTasks("default", "other", "notify", Count(300)),
        ),
    )
    # That its attempts fail is no second finding: no dead letter would tell more of it.
    fails = Signals(5, 1.0, 10.0, 0.1, 1, 8, failed=10.0)
    look = with_reports(
        msgspec.structs.replace(
            seen(groups=(group(),)), status=status, paces={("default", "hooks"): fails},
            signals={"default": fails},
        ),
        reported(outages=(first,)), reported(number=2, outages=(later,)),
        reported(number=3, age_s=500.0, outages=(first,)),
    )  # fmt: skip
    [found] = findings(look)
    assert (found.level, found.what) == ("bad", "Outage of what notify (default) needs")
    assert found.detail == (
        "Most attempts of it in queue hooks fail, for 4.0 min, in 2 workers. The last error: "
        "HTTPStatusError: 500 Internal Server Error. "
        "20 wait and lose no attempt: one at a time tries whether it is over."
    )
    assert found.command == "late tasks list parked --group default --queue hooks --name notify"


def test_who_may_see_some_queues_is_told_of_no_other_outage_run_or_target() -> None:
    outages = tuple(OutageReport("default", queue, "notify", 1, "secret") for queue in ("a", "b"))
    runs = tuple(Run("default", queue, "notify", TASK, 1) for queue in ("a", "b"))
    look = with_reports(
        seen(), reported(outages=outages, runs=runs, stuck=runs, targets=(target(),))
    )
    [left] = narrowed(look, Caller("x", (Right("view", ("a",)),))).reports
    found = (left.report.outages, left.report.runs, left.report.stuck, left.report.targets)
    assert found == (outages[:1], runs[:1], runs[:1], ())


def test_who_may_see_some_queues_is_told_of_no_other_pause_objective_or_consumer() -> None:
    pauses = tuple(Pause(kind, "b", "ada", 1) for kind in ("queue", "group", "schedule", "target"))
    status = msgspec.structs.replace(
        seen().status, objectives=(objective(),), pauses=(*pauses, Pause("queue", "a", "ada", 1))
    )
    silent = tuple(SilentConsumer(queue, "c", 3) for queue in ("a", "b"))
    look = with_reports(msgspec.structs.replace(seen(), status=status), reported(silent=silent))
    found = narrowed(look, Caller("x", (Right("view", ("a",)),)))
    assert found.status.pauses == (Pause("queue", "a", "ada", 1),)
    assert found.status.objectives == ()
    assert found.reports[0].report.silent == silent[:1]


def test_workers_that_stand_still_are_named_with_duty_and_task() -> None:
    look = with_reports(seen(workers=(), groups=(group(lag=Count(9)),)), stalled(live=False))
    found = findings(look)
    assert [each.what for each in found] == ["1 of 1 workers stand still"]
    assert found[0].detail == (
        "host:1: handlers that do not end hold every slot (slots), for 2.0 min. app.send of queue "
        f"mail (task {TASK}) runs for 5.0 min. What helps: end this process; others take its "
        "shards over, and these tasks run again."
    )
    assert found[0].command == f"late show {TASK}"


def test_what_a_death_would_repeat_is_said() -> None:
    blocked = stalled(stalled=("answer",), stuck=(), unrecorded=3)
    [found] = findings(with_reports(seen(), blocked))
    assert "its event loop is blocked (answer)" in found.detail
    assert "3 ends are not recorded: its death repeats these tasks." in found.detail
    assert found.command == "py-spy dump --pid 1"


def test_a_process_that_was_heard_of_lately_may_live() -> None:
    [found] = findings(with_reports(seen(workers=()), stalled(age_s=100.0, live=False)))
    assert found.what == "No worker is alive"
    assert "host:1 stood still when it was last heard of, 1.7 min ago" in found.detail


def test_one_task_that_hangs_is_a_warning() -> None:
    [found] = findings(with_reports(seen(), stalled(stalled=(), stalled_since_us=None)))
    assert (found.level, found.what) == ("warn", "Handlers of host:1 do not end")


def everything() -> list[Any]:
    """Findings of every kind."""
    queue = QueueStatus("default", "mail", Count(3), dead=Count(2), oldest_age_s=5_000.0)
    paused = msgspec.structs.replace(queue, queue="slow")
    look = seen(
        queue, paused,
        groups=(group(lagging=True, lag_s=900.0), group(name="b", state="unregistered"),
                group(name="c", state="paused", lag=Count(1))),
        settings={"slow": QueueSettings(paused=True, closed=True)},
    )  # fmt: skip
    more = with_reports(seen(workers=()), stalled(), reported(number=2, targets=(target(),)))
    sick = msgspec.structs.replace(
        with_reports(seen(), reported(runs=(OUT,), clock_off_s=-40)),
        disk=Disk(1, 1_000),
    )
    return (
        findings(look)
        + findings(more)
        + findings(seen(workers=()))
        + findings(sick)
        + findings(poisoned(2))
    )


def test_a_task_that_kills_its_workers_is_named() -> None:
    [found] = findings(poisoned(2))
    assert (found.level, found.what) == ("bad", f"Workers die under task {TASK}")
    assert found.detail.startswith("2 workers died while it ran, in group default.")
    assert (found.href, found.command) == (f"tasks/{TASK}", f"late show {TASK}")
    assert [each.level for each in findings(poisoned(1))] == ["warn"], "it may have been chance"


def poisoned(deaths: int) -> Snapshot:
    status = msgspec.structs.replace(
        seen().status, suspects=(SuspectTask("default", 3, TASK, deaths),)
    )
    return msgspec.structs.replace(seen(), status=status)


def test_a_consumer_that_never_answers_is_named_with_what_it_has() -> None:
    [found] = findings(with_reports(seen(), reported(runs=(OUT, OUT_FIRST))))
    assert (found.level, found.what) == ("warn", "Consumer c1 does not answer")
    assert found.detail == (
        "It has 2 tasks of queue pay, the oldest for 45 s; 1 of them were out before, up to 2"
        " times, and came back unanswered or failed. What helps: pause the queue, so that no"
        " attempt is lost, and mend the consumer."
    )
    assert found.command == "late queue pause pay"
    fresh = msgspec.structs.replace(OUT, since_us=NOW_US - 5_000_000)
    local = msgspec.structs.replace(OUT, where="")
    for runs in ((OUT_FIRST,), (fresh,), (local,), ()):
        assert findings(with_reports(seen(), reported(runs=runs))) == []
    assert findings(with_reports(seen(), reported(age_s=60.0, runs=(OUT,)))) == []


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [(80, 1_000, None), (9, 1_000, "warn"), (9, 20, None), (1, 1_000, "bad"), (1, 20, "warn")],
)
def test_a_disk_that_is_nearly_full_is_told(free: int, total: int, level: str | None) -> None:
    disk = Disk(free * 2**30, total * 2**30, "/data", "/data/late.db")
    found = findings(msgspec.structs.replace(seen(), disk=disk))
    assert [each.level for each in found] == ([level] if level else [])
    for each in found:
        assert each.what == "The disk of the database is nearly full"
        assert re.search(rf"^{free}\.0 GiB of [\d.,]+ GiB are free \(.*\) on /data\.", each.detail)


def test_shards_without_an_owner_a_fleet_without_a_worker_and_a_group_behind_are_named() -> None:
    [found] = findings(seen(groups=(group(),), shards=(shard(owner_live=False),)))
    assert (found.what, found.command) == (
        "Shards of default are not worked",
        "late status --owners",
    )
    [found] = findings(seen(workers=()))
    assert (found.what, found.command) == ("No worker is alive", "late worker MODULE:APP")
    gone = group(workers=0, lag=Count(9))
    found = findings(seen(groups=(gone,), shards=(shard(owner_live=False),)))[0]
    assert (found.what, found.detail) == (
        "Nobody works group default", "No live worker serves it; 9 wait.",
    )  # fmt: skip
    assert found.command == "late worker MODULE:APP --group default"
    [found] = findings(seen(groups=(group(lagging=True, lag_s=900.0),)))
    assert (found.what, found.command) == ("Group default lags", "late groups")
    assert found.detail == "The oldest that it has not read is 15 min old."


def test_a_clock_that_is_wrong_is_told_with_its_machine() -> None:
    [found] = findings(with_reports(seen(), reported(clock_off_s=-40)))
    assert (found.level, found.what) == ("warn", "The clock of host:1 is wrong")
    assert found.detail.startswith("It is 40 s ahead of the database's.")
    [found] = findings(with_reports(seen(), reported(clock_off_s=40)))
    assert found.detail.startswith("It is 40 s behind the database's.")


def test_each_command_is_one_that_there_is_and_none_destroys() -> None:
    found = everything()
    assert len(found) > 10
    for each in found:
        assert each.command, each.what
        assert not {"delete", "purge", "remove", "reset"} & set(each.command.split()), each.what
        words = shlex.split(each.command)
        if words[0] != "late":
            continue
        node = commands_of_late()
        while len(words) > 1 and words[1] in getattr(node, "commands", {}):
            node = node.commands[words.pop(1)]
        if not hasattr(node, "commands"):
            node.make_context(each.command, words[1:])


def test_a_report_of_another_version_is_read_as_far_as_it_goes() -> None:
    told = stalled().report
    assert worker_report.decode(worker_report.encode(told)) == told
    newer = worker_report.encode(told)[:-1] + ',"tides":[1]}'
    assert worker_report.decode(newer) == told
    assert worker_report.decode('{"worker_id":"w","address":"h:1"}') is not None
    assert worker_report.decode("[]") is None


def flooded(*, waiting: int = 7_888, seen_: int = 5, share: float = 0.92) -> Snapshot:
    pace = Signals(
        backlog=waiting, age_s=1.0, rate=5.0, busy_s=0.5, workers=1, shards=1, tenants_seen=seen_,
        tenants=(TenantPace("big", 40.0, share, 3.2, 0.78),),
    )  # fmt: skip
    found = seen(QueueStatus("default", "mail", Count(88)), settings={"mail": FAIR})
    held = (LimitedTasks("default", "mail", "app.send", Count(waiting - 88)),)
    status = msgspec.structs.replace(found.status, limited=held)
    return msgspec.structs.replace(found, status=status, paces={("default", "mail"): pace})


FAIR = QueueSettings(fair_key="tenant")


def test_a_tenant_that_floods_is_named_with_its_share_and_the_knob() -> None:
    [found] = findings(flooded())
    assert (found.level, found.what) == ("warn", "Tenant big floods queue mail")
    assert found.detail == (
        "40 tasks/s, 92% of what 5 tenants send, and 78% of the busy slots (3.20). 7,888 wait. "
        "While others wait it gets 25% of the slots (fair_share)."
    )
    assert found.command == "late queue set mail fair_share=0.125"


def test_a_lone_tenant_and_a_short_queue_are_no_flood() -> None:
    assert findings(flooded(seen_=1)) == []
    assert findings(flooded(waiting=99)) == []


def test_who_holds_a_lock_is_named_and_what_a_death_would_repeat() -> None:
    holder = LockHolder(
        4711, "migration", "idle in transaction", 180.0, "late_settlement", 4, 120.0,
        "admin", database="postgresql://late@db/shop",
    )  # fmt: skip
    waits = reported(settling_since_us=NOW_US - 40_000_000, unrecorded=12)
    look = msgspec.structs.replace(seen(), holders=(holder,), reports=(waits,))
    first, second = findings(look)
    assert first.what == "Process 4711 of the database holds a lock on late_settlement"
    assert first.detail == (
        "It is migration of user admin, idle in transaction, its transaction open for 3.0 min. "
        "4 sessions of late wait for it, the longest for 2.0 min. What helps: end its transaction "
        "in the program that began it. Else the command ends its session, and what it has not "
        "committed is rolled back; it takes the role admin, or pg_signal_backend."
    )
    assert first.command == (
        "psql postgresql://late@db/shop -c 'select pg_terminate_backend(4711)'"
    )
    assert second.what == "Settlements of 1 workers are not answered"
    assert second.detail == (
        "host:1 waits for 40 s for the answer. 12 ends of tasks are not recorded: the death of a "
        "worker repeats its part of them, so do not restart it. It follows from: "
        + first.what
        + "."
    )
    assert second.command == first.command
    short = msgspec.structs.replace(holder, waits_s=1.0)
    assert findings(msgspec.structs.replace(seen(), holders=(short,))) == []


def test_what_could_not_be_read_is_not_taken_for_nothing() -> None:
    look = msgspec.structs.replace(seen(workers=()), partial=True, reports=(stalled(),))
    found = [each.what for each in findings(look)]
    assert found == ["The database does not answer", "1 of 1 workers stand still"]
    holder = LockHolder(4711, "migration", "idle", 180.0, "late_task", 4, waits_s=0.0)
    cause, *effects = findings(msgspec.structs.replace(look, holders=(holder,)))
    assert [each.what for each in effects] == ["The tables of late are locked", found[1]]
    assert {each.command for each in effects} == {cause.command}
    assert "4 sessions of late wait for it. What helps" in cause.detail, "for how long is hidden"


def test_workers_that_no_list_of_members_has_are_the_cause_of_shards_without_an_owner() -> None:
    look = seen(groups=(group(),), shards=(shard(owner_live=False),))
    [found] = findings(with_reports(look, reported(unlisted="host-a"), reported(number=2)))
    told = "1 workers are not on their list of members (LATE_MEMBERSHIP): host-a. What helps: put"
    assert told in found.detail
    assert found.href == "workers", "there it is said of each"


def test_a_consumer_that_lets_times_pass_is_named_by_what_its_servers_counted() -> None:
    silent = SilentConsumer("pay", "c1", 4)
    told = (reported(silent=(silent,), runs=(OUT,)), reported(number=2, silent=(silent,)))
    [found] = findings(with_reports(seen(), *told))
    assert (found.level, found.what) == ("bad", "Consumer c1 does not answer")
    assert found.detail.startswith("It let the time of 8 attempts at tasks of queue pay pass")
    assert findings(with_reports(seen(), reported(age_s=60.0, silent=(silent,)))) == []


def test_dead_letters_under_which_workers_died_are_told_apart() -> None:
    queue = QueueStatus("default", "mail", dead=Count(3), killed=Count(1))
    [found] = findings(seen(queue))
    assert found.detail == (
        "3 wait for a retry or a purge. Workers died under 1 of them (killed_worker). What helps:"
        " mend their code, and only then retry them."
    )


def test_a_group_that_is_stale_says_what_waits_and_how_fast_it_goes() -> None:
    pace = Signals(900, 90.0, 2.0, 0.5, 1, 8, limits=("queue mail has concurrency=1",))
    look = msgspec.structs.replace(seen(groups=(group(stale_s=90.0),)), signals={"default": pace})
    [found] = findings(look)
    assert found.detail == (
        "Only what is older than 1.5 min is done. 900 wait, and 2/s end: that takes 7.5 min."
        " It is limited: queue mail has concurrency=1. More workers do not help: what helps is to"
        " raise or mend that limit."
    )
    assert found.command == "late group show default"


def objective(**burns: float) -> ObjectiveView:
    rates = tuple(Burn(window, rate) for window, rate in burns.items())
    return ObjectiveView("default", "mail", 30.0, 0.99, 1_000, 20, 0.0, 0.8, rates, 8, 8)


@pytest.mark.parametrize(
    ("burns", "level"),
    [
        ({"1h": 20.0, "5m": 20.0, "6h": 20.0, "30m": 20.0}, "bad"),
        ({"1h": 20.0, "5m": 1.0, "6h": 7.0, "30m": 7.0}, "warn"),
        ({"1h": 20.0, "5m": 1.0, "6h": 7.0, "30m": 1.0}, None),
        ({"1h": 1.0, "5m": 1.0, "6h": 1.0, "30m": 1.0}, None),
    ],
)
def test_an_objective_is_missed_by_two_windows(burns: dict[str, float], level: str | None) -> None:
    status = msgspec.structs.replace(seen().status, objectives=(objective(**burns),))
    found = findings(msgspec.structs.replace(seen(), status=status))
    assert [each.level for each in found] == ([level] if level else [])
    if level == "bad":
        assert found[0].what == "Queue mail (default) misses its objective"
        assert found[0].detail == (
            "20% of what started in 1h was later than 30 s; 1% may be. The error budget burns"
            " 20 times too fast, 80% of it is left."
        )


def test_an_objective_of_a_group_is_told_with_the_group() -> None:
    whole = msgspec.structs.replace(objective(**{"1h": 20.0, "5m": 20.0}), queue="")
    status = msgspec.structs.replace(seen().status, objectives=(whole,))
    [found] = findings(msgspec.structs.replace(seen(), status=status))
    assert found.what == "Group default misses its objective"
    assert (found.href, found.command) == ("groups/default", "late group show default")
    look = msgspec.structs.replace(seen(), status=status)
    assert narrowed(look, Caller("x", (Right("view", ("mail",)),))).status.objectives == ()


@pytest.mark.parametrize(("expired", "told"), [(1.0, True), (0.1, False), (0.0, False)])
def test_a_group_that_skips_much_is_told(expired: float, told: bool) -> None:
    pace = Signals(backlog=0, age_s=0.0, rate=2.0, busy_s=0.1, workers=1, shards=1, expired=expired)
    look = seen(groups=(group(max_age_s=60.0),))
    look = msgspec.structs.replace(look, signals={"default": pace})
    found = [each for each in findings(look) if "skips" in each.what]
    assert bool(found) is told
    if told:
        assert found[0].detail.startswith("1/s, 33% of what came to their turn")
    silent = msgspec.structs.replace(look, groups=(group(),))
    assert not [each for each in findings(silent) if "skips" in each.what]


def test_the_limits_of_objectives_are_those_of_the_alerts() -> None:
    for name, (long, short, most, _) in zip(("Fast", "Slowly"), BURNS, strict=True):
        [alert] = [each for each in ALERTS if each.name == f"LateObjectiveBurns{name}"]
        for window in (long, short):
            assert f'window="{window}"' in alert.expr
        assert alert.expr.count(f"> {most:g}") == 2


def test_what_is_paused_says_who_paused_it() -> None:
    queue = QueueStatus("default", "mail", depth=Count(3), oldest_age_s=90.0)
    look = seen(queue, settings={"mail": QueueSettings(paused=True)})
    pause = Pause("queue", "mail", "ada", NOW_US - 7_200_000_000)
    status = msgspec.structs.replace(look.status, pauses=(pause,))
    [found] = findings(msgspec.structs.replace(look, status=status))
    assert found.detail.endswith(" ada paused it 2.0 h ago.")
    [found] = findings(look)
    assert "paused it" not in found.detail
