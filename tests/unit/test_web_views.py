"""What the screens say, from values of the control plane: no server, no database."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from late.autoscaler.keda.demand import Signals
from late.control.task_list.model import ListedTask, TaskPage
from late.control.views import (
    Count,
    DeadView,
    GroupView,
    QueueStatus,
    ShardStatus,
    Status,
    StepView,
    TaskInGroup,
    TaskView,
    UnhandledTasks,
    WorkerStatus,
)
from late.errors import ConfigError, InvalidName, InvalidPolicy
from late.model.ids import new_id
from late.model.queue_settings import QueueSettings
from late.model.task import HELD_US, AttemptError, StepDetail, Usage
from late.web import formats as shape
from late.web import static_files as files
from late.web.access import csrf as guard
from late.web.models import (
    cost,
    overview,
    queues,
    task,
    tasks,
)
from late.web.models import (
    dead_letters as dead,
)
from late.web.models import (
    shards as places,
)
from late.web.snapshot import Snapshot, point_of

NOW_US = 1_800_000_000_000_000
WORKER = WorkerStatus("w1", "h:1", ("default",), 1.0, "1", NOW_US, 4.0, 1)
OWNER = ": the arguments do not fit, or the owner of its shard has none (late show ID)."
PACE = Signals(backlog=100, age_s=1.0, rate=20.0, busy_s=0.5, workers=1, shards=1)


def shard(number: int = 0, **changes: Any) -> ShardStatus:
    given: dict[str, Any] = {
        "group": "default", "shard_id": number, "owner": "w1", "owner_live": True, "epoch": 1,
        "seq": 1, "lag": Count(), "lag_s": None, "in_flight": 0, "settled_at_us": NOW_US,
    }  # fmt: skip
    return ShardStatus(**(given | changes))


def seen(
    *queues_: QueueStatus,
    groups: tuple[GroupView, ...] = (),
    shards: tuple[ShardStatus, ...] = (shard(),),
    workers: tuple[WorkerStatus, ...] = (WORKER,),
    settings: dict[str, QueueSettings] | None = None,
) -> Snapshot:
    status = Status(NOW_US, "1", "d", tuple(queues_), shards, workers)
    return Snapshot(status, {"default": PACE}, groups, settings or {})


def group(**changes: Any) -> GroupView:
    given: dict[str, Any] = {
        "name": "default", "created_at_us": 1, "state": "working", "workers": 1
    }  # fmt: skip
    return GroupView(**(given | changes))


def failing(rate: float) -> Snapshot:
    pace = msgspec.structs.replace(PACE, failed=rate)
    return msgspec.structs.replace(seen(groups=(group(),)), signals={"default": pace})


def whats(found: Snapshot) -> list[tuple[str, str]]:
    return [(each.level, each.what) for each in overview.overview(found).attention]


@pytest.mark.parametrize(
    ("handlers", "says"),
    [(None, ""), (0, " No live workers have a handler."),
     (1, f" 1 live worker has a handler{OWNER}"), (2, f" 2 live workers have a handler{OWNER}")],
)  # fmt: skip
def test_tasks_that_no_worker_can_run_are_named_with_their_number_and_age(
    handlers: int | None, says: str
) -> None:
    tasks = UnhandledTasks("default", "mail", "app.report", Count(40), 125.0, handlers)
    found = seen()
    status = msgspec.structs.replace(found.status, unhandled=(tasks,))
    [line] = overview.overview(msgspec.structs.replace(found, status=status)).attention
    assert (line.level, line.what) == ("bad", "No worker of default can run app.report")
    assert line.detail == f"40 of queue mail wait, the first for 2.1 min.{says}"
    assert line.command.startswith("late tasks list" if handlers else "late check")


def test_all_is_well_where_all_is_well() -> None:
    found = overview.overview(seen(QueueStatus("default", "mail", Count(3)), groups=(group(),)))
    assert found.attention == ()
    assert {tile.level for tile in found.tiles} == {"ok"}
    assert [(t.label, t.value) for t in found.tiles[:2]] == [("Flow", "20/s"), ("Backlog", "3")]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (seen(workers=()), ("bad", "No worker is alive")),
        (
            seen(groups=(group(),), shards=(shard(owner_live=False),)),
            ("bad", "Shards of default are not worked"),
        ),
        (seen(groups=(group(lagging=True, lag_s=900.0),)), ("bad", "Group default lags")),
        (seen(groups=(group(stale_s=61.0),)), ("warn", "Group default is stale")),
        (seen(groups=(group(state="paused", lag=Count(1)),)), ("warn", "Group default is paused")),
        (
            seen(QueueStatus("default", "mail", oldest_age_s=601.0)),
            ("warn", "Queue mail (default) is behind"),
        ),
        (
            seen(
                QueueStatus("default", "mail", oldest_age_s=11.0),
                settings={"mail": QueueSettings(objective_s=10.0, severity="page")},
            ),
            ("bad", "Queue mail (default) is behind"),
        ),
        (
            seen(
                QueueStatus("default", "mail", Count(1)),
                settings={"mail": QueueSettings(paused=True)},
            ),
            ("warn", "Queue mail (default) is paused"),
        ),
        (
            seen(QueueStatus("default", "mail", dead=Count(1))),
            ("warn", "Dead letters in mail (default)"),
        ),
    ],
)
def test_each_trouble_is_told(found: Snapshot, expected: tuple[str, str]) -> None:
    assert whats(found) == [expected]


def test_a_backlog_of_several_groups_says_which_share_of_them_stands() -> None:
    still = msgspec.structs.replace(PACE, rate=0.0)

    def note(**paces: Signals) -> str:
        found = overview.overview(msgspec.structs.replace(seen(), signals=paces))
        return next(tile.note for tile in found.tiles if tile.label == "Backlog")

    assert note(a=PACE) == "gone in 5.0 s"
    assert note(a=msgspec.structs.replace(PACE, helped=20)) == "gone in 1.0 s, but 80 are held back"
    assert note(a=PACE, b=still) == "1 of 2 groups stand still"
    assert note(a=still, b=still) == "nothing moves"
    assert note(a=msgspec.structs.replace(still, backlog=0)) == ""


def test_trouble_of_a_group_leads_to_where_it_is_mended() -> None:
    paused = group(name="a:b", state="paused", lag=Count(1))
    (found,) = overview.overview(seen(groups=(paused,))).attention
    assert found.href == "groups/a%3Ab"


def test_a_worker_that_vanished_is_named_as_long_as_it_owns_shards() -> None:
    gone = [shard(n, owner="w9", owner_live=False, group=g) for n in (1, 2) for g in ("b", "a")]
    found = seen(shards=(shard(0), *gone, shard(3, owner=None, owner_live=False)))
    (lost,) = places.vanished(found)
    assert (lost.worker_id, lost.groups, lost.shards) == ("w9", ("a", "b"), 4)


def test_the_worst_comes_first_and_many_are_a_number() -> None:
    letters = [QueueStatus("default", f"q{n}", dead=Count(1)) for n in range(40)]
    found = overview.overview(seen(*letters, groups=(group(lagging=True, lag_s=900.0),)))
    assert found.attention[0].level == "bad"
    assert (len(found.attention), found.more) == (overview.SHOWN, 41 - overview.SHOWN)
    assert whats(failing(0.9)) == []
    assert whats(failing(1.0)) == [("warn", "Tasks of group default fail")]
    assert whats(failing(10.0)) == [("bad", "Tasks of group default fail")]
    assert point_of(seen())[1:] == (100, 20.0)


def test_pages_of_queues_follow_one_another_and_miss_none() -> None:
    rows = queues.rows(seen(*(QueueStatus(g, f"q{n}") for n in range(7) for g in ("a", "b"))))
    found, after = [], ""
    while True:
        page = queues.listed(rows, after=after, most=3)
        found += [(row.status.queue, row.status.group) for row in page.rows]
        if page.after is None:
            break
        after = page.after
    assert found == sorted((f"q{n}", g) for n in range(7) for g in ("a", "b"))
    assert len(queues.listed(rows, text="Q3", group="b").rows) == 1


def test_queues_in_trouble_come_first_with_a_word_for_their_state() -> None:
    names = ("a-idle", "b-waits", "c-works", "d-limited", "e-paused", "f-fails", "g-behind")
    found = seen(
        QueueStatus("default", "a-idle"), QueueStatus("default", "b-waits", Count(2)),
        *(QueueStatus("default", name) for name in names[2:6]),
        QueueStatus("default", "g-behind", Count(1), oldest_age_s=99_999.0),
        settings={"e-paused": QueueSettings(paused=True)},
    )  # fmt: skip
    still = msgspec.structs.replace(PACE, rate=0.0)
    paces = {
        "c-works": PACE,
        "d-limited": msgspec.structs.replace(PACE, limits=("queue d-limited has its rate of 5/s",)),
        "f-fails": msgspec.structs.replace(PACE, failed=19.0), "a-idle": still,
    }  # fmt: skip
    keyed = {("default", name): pace for name, pace in paces.items()}
    rows = queues.rows(msgspec.structs.replace(found, paces=keyed))
    assert [(row.status.queue, row.level, *row.badges) for row in rows] == [
        ("f-fails", "bad", "failing"), ("g-behind", "bad", "behind"),
        ("e-paused", "warn", "paused"), ("a-idle", "ok", "idle"), ("b-waits", "ok", "waiting"),
        ("c-works", "ok", "working"), ("d-limited", "ok", "limited by its rate of 5/s"),
    ]  # fmt: skip
    first = queues.listed(rows, most=2)
    assert queues.listed(rows, after=first.after or "", most=9).rows == tuple(rows[2:])


def test_knobs_of_a_queue_without_tasks_are_shown() -> None:
    (row,) = queues.rows(seen(settings={"renamed": QueueSettings(rate=1.0)}))
    assert (row.status.queue, row.badges, row.level) == ("renamed", ("no tasks",), "ok")


def test_a_form_as_it_came_changes_nothing() -> None:
    settings = QueueSettings(
        paused=True, rate=0.5, concurrency="auto", severity="page", owner="pay"
    )
    fields = {queues.PREFIX + field.name: field.value for field in queues.form(settings)}
    assert len(fields) == len(QueueSettings.__struct_fields__)
    assert queues.changes(settings, fields) == {}
    fields |= {"knob.rate": "", "knob.paused": "off", "knob.burst": "7", "knob.none": "1"}
    assert queues.changes(settings, fields) == {"rate": None, "paused": False, "burst": 7}
    with pytest.raises(InvalidPolicy, match="burst"):
        queues.changes(settings, {"knob.burst": "many"})


def test_a_preview_tells_what_comes_of_it() -> None:
    waits = [QueueStatus("default", "mail", Count(90), Count(10), oldest_age_s=30.0)]

    def told(after: QueueSettings, before: QueueSettings | None = None) -> str:
        return " ".join(queues.effects(before or QueueSettings(), after, waits, [PACE]))

    assert "At most 2/s start, where 20/s did" in told(QueueSettings(rate=2.0))
    assert "at least 50 s" in told(QueueSettings(rate=2.0))
    assert "At most 8/s" in told(QueueSettings(concurrency=4))
    assert "Nothing more starts; 100 tasks wait" in told(QueueSettings(paused=True))
    assert "may start within seconds" in told(QueueSettings(), QueueSettings(paused=True))
    assert "the oldest (30 s) would end" in told(QueueSettings(expires_s=10.0))
    assert "Producers are refused at once" in told(QueueSettings(max_backlog=50))
    assert told(QueueSettings(owner="pay")) == ""
    changed = queues.preview(QueueSettings(rate=1.0), QueueSettings(paused=True))
    assert {(c.name, c.before, c.after) for c in changed} == {
        ("rate", "1", "default"), ("paused", "default", "on"),
    }  # fmt: skip


def letter(at_us: int, *errors: str) -> DeadView:
    texts = tuple(AttemptError(n, at_us, "w", text) for n, text in enumerate(errors, start=1))
    return DeadView(new_id(0), "default", 0, at_us, "failed", "mail", "send", 1, 3, 0, texts, 2)


def test_dead_letters_of_one_cause_are_one() -> None:
    found = [
        letter(9, "ValueError: no user 17 [a.py:3 f]"),
        letter(8, "ValueError: no user 18 [a.py:3 f]"),
        letter(7, "OSError: [Errno 5]"),
    ]
    first, second = dead.causes(found).causes
    assert (first.stem, first.count, first.first_us, first.last_us) == (
        "ValueError: no user",
        2,
        8,
        9,
    )
    assert (second.stem, second.count) == ("OSError:", 1)
    assert all(first.stem in each.errors[-1][-1] for each in first.examples)
    assert dead.stem("") == ""


def test_many_causes_and_long_errors_make_no_large_page() -> None:
    found = [letter(n, *("x" * 4_000 + f" {k}" for k in range(20))) for n in range(200)]
    found = [msgspec.structs.replace(each, queue=f"q{n}") for n, each in enumerate(found)]
    page = dead.causes(found)
    assert (len(page.causes), page.more) == (dead.CAUSES, 200 - dead.CAUSES)
    texts = [e[-1] for cause in page.causes for each in cause.examples for e in each.errors]
    assert sum(map(len, texts)) < 200 * dead.CAUSES * 20 + dead.ERRORS_SHOWN
    (cause,) = dead.causes(found[:1]).causes
    (example,) = cause.examples
    assert example.errors[-1][-1] == "x" * 4_000 + " 19", "the last is whole where there is room"
    assert len(example.errors[0][-1]) == 200


def test_a_long_life_is_told_by_its_ends() -> None:
    steps = tuple(
        StepView(n, n * 10 + 10, "retried", "w1", StepDetail(n, error="y" * 4_000))
        for n in range(500)
    )
    made = TaskView("id", 3, 5, (TaskInGroup("default", "open", history=steps),))
    (life,) = task.lives(made)
    assert len(life.moments) == task.MOMENTS + 1
    assert sum(len(each.error) for each in life.moments) < task.ERRORS_SHOWN + 200 * task.MOMENTS
    assert any("more before" in each.what for each in life.moments)
    assert (life.moments[0].what, life.moments[-1].at_us) == ("Made", 5_000)


def test_only_errors_that_differ_are_shown() -> None:
    found = dead.differences(letter(1, "a", "a", "b", "b", "a"))
    assert [(number, error) for number, _, _, error in found] == [(1, "a"), (3, "b"), (5, "a")]


def test_a_filter_is_what_the_link_says() -> None:
    chosen = dead.which({"queue": "mail", "error": "no user", "before": "5", "x": "y"})
    assert (chosen.queue, chosen.error, chosen.until_us) == ("mail", "no user", 5)
    assert dead.said(chosen) == "queue 'mail', error 'no user'"
    assert dead.said(dead.which({})) == "all dead letters"
    with pytest.raises(ConfigError):
        dead.which({"before": "soon"})


def test_a_life_is_told_in_its_order() -> None:
    steps = (
        StepView(1, 30, "retried", "w1", StepDetail(1, "local", 20, 10, error="no")),
        StepView(2, 60, "done", "w2", StepDetail(2, "local", 50, 10)),
    )
    made = TaskView("id", 3, 5, (TaskInGroup("default", "settled", history=steps),),
                    created_at_us=10)  # fmt: skip
    (life,) = task.lives(made)
    assert [(m.at_us, m.what) for m in life.moments] == [
        (5, "Made"), (10, "Enqueued"), (20, "Started"), (30, "Retried"), (50, "Started"),
        (60, "Done"),
    ]  # fmt: skip
    assert (life.level, life.can_cancel) == ("ok", False)
    assert life.now == "has ended, or its group began or was reset behind it"
    kept = TaskInGroup("default", "settled", outcome="done")
    (life,) = task.lives(msgspec.structs.replace(made, groups=(kept,)))
    assert life.now == "has ended: done"
    gone = TaskInGroup("default", "dead", reason="failed", dead_at_us=9, attempts=1,
                       errors=(AttemptError(1, 8, "w1", "boom"),))  # fmt: skip
    (life,) = task.lives(msgspec.structs.replace(made, groups=(gone,)))
    assert [m.what for m in life.moments][1:3] == ["Attempt 1 failed", "Died"]
    assert life.now == "is a dead letter (failed), after 1 attempt"


def test_usage_is_added_up_and_divided_by_owner() -> None:
    shares: dict[tuple[str, str], cost.Share] = {}
    cost.add(shares, [
        ("default", Usage("mail", "send", "local", "done", 2, 3, 600, retries=1, payload_bytes=8)),
        ("default", Usage("mail", "send", "local", "enqueued", 5)),
        ("default", Usage("pay", "charge", "local", "retried", 1, 1, 300)),
        ("default", Usage("log", "write", "local", "done", 1, 1, 100)),
    ])  # fmt: skip
    found = cost.lines(
        shares, {"pay": QueueSettings(owner="fin"), "mail": QueueSettings(owner="fin")}
    )
    assert [(line.owner, line.queue, line.part) for line in found] == [
        ("fin", "mail", 0.6), ("fin", "pay", 0.3), (cost.NOBODY, "log", 0.1),
    ]  # fmt: skip
    mail = found[0].share
    assert (mail.enqueued, mail.ended, mail.attempts, mail.retries) == (5, 2, 3, 1)
    assert found[1].share.ended == 0
    rest = cost.together(found[1:])
    assert (rest.busy_us, rest.attempts, rest.ended) == (400, 2, 1)
    assert cost.day_of(cost.DAY_US * 3 + 5) == cost.DAY_US * 3


def test_shards_come_in_pages_and_the_homeless_are_counted() -> None:
    found = seen(shards=tuple(shard(n, owner_live=n != 2, lag=Count(n)) for n in range(5)))
    page = places.shards(found, most=2)
    assert ([r.status.shard_id for r in page.rows], page.after, page.homeless) == ([0, 1], 1, 1)
    two = places.shards(seen(shards=(shard(), shard(1024, lane="bulk"))), most=1)
    assert (page.lanes, two.lanes) == (("default",), ("bulk", "default"))
    page = places.shards(found, after=1, most=3)
    assert ([r.level for r in page.rows], page.after) == (["bad", "ok", "ok"], None)
    assert places.reset_to("moment", "1777636800000001") == 1_777_636_800_000_001
    assert places.reset_to("moment", "2026-05-01T14:00:00.000001+02:00") == 1_777_636_800_000_001
    for text in ("yesterday", "2026-05-01T12:00:00", "", "9" * 19):
        with pytest.raises(ConfigError):
            places.reset_to("moment", text)
    with pytest.raises(ConfigError):
        places.confirmed("audit", "Audit")
    pairs = [(Count(1), Count(2)), (Count(3, True), Count(4))]
    assert places.totals(pairs) == (Count(4, True), Count(6))


def test_rows_of_tasks_say_how_long_they_wait() -> None:
    def view(state: str, **more: Any) -> tasks.TaskRow:
        task = ListedTask(at=1, task_id=new_id(0), group="default", shard_id=0,
                          queue="mail", name="send", **more)  # fmt: skip
        page = TaskPage(state, (task,), (7, "x"), NOW_US, 400, True)  # type: ignore[arg-type]
        model = tasks.tasks(page)
        assert (model.after, model.looked, model.stopped) == ("7.x", 400, True)
        return model.rows[0]

    late = int((tasks.OVERDUE_S + 1) * 1e6)
    row = view("parked", due_at_us=NOW_US - late)
    assert (row.level, row.wait) == ("warn", "overdue 31 s")
    assert view("parked", due_at_us=NOW_US - 1_000_000).level == "ok"
    assert view("parked", due_at_us=NOW_US + 10**6).wait == "in 1.0 s"
    assert view("parked", due_at_us=HELD_US).wait == "behind its key"
    row = view("running", began_at_us=NOW_US - 90_000_000, worker="h:1")
    assert (row.level, row.wait, row.where) == ("ok", "1.5 min", "h:1")
    assert view("dead", ended_at_us=NOW_US - 10**6).level == "bad"
    assert view("logged", created_at_us=NOW_US - 10**6).wait == "1.0 s"
    page = TaskPage("logged", (), None, NOW_US, 0, False)
    assert tasks.tasks(page).can_command
    assert not tasks.tasks(msgspec.structs.replace(page, state="running")).can_command


def test_the_fields_of_the_screen_of_tasks() -> None:
    task_id = new_id(3)
    fields = {"state": "parked", "queue": "mail", "older": "1.5h", f"id.{task_id}": "1", "x": "y"}
    which = tasks.which(fields)
    assert (which.group, which.queue, which.older_us) == ("default", "mail", 5_400_000_000)
    assert tasks.state_of(fields) == "parked"
    assert tasks.state_of({}) == "running"
    assert tasks.selected(fields) == (task_id,)
    assert tasks.kept(fields) == {name: text for name, text in fields.items() if name != "x"}
    assert tasks.said("parked", fields) == "1 selected task"
    assert tasks.said("parked", {"queue": "mail"}) == "tasks in state 'parked', queue 'mail'"
    with pytest.raises(ConfigError):
        tasks.state_of({"state": "lost"})
    with pytest.raises(ConfigError):
        tasks.which({"older": "soon"})
    with pytest.raises(InvalidName):
        tasks.selected({"id.nonsense": "1"})


def test_figures_are_short() -> None:
    ages = (None, 0.0, 0.25, 4.25, 59.0, 720.0, 12_600.0, 864_000.0)
    assert [shape.age(s) for s in ages] == [
        "–", "0 s", "250 ms", "4.2 s", "59 s", "12 min", "3.5 h", "10 d",
    ]  # fmt: skip
    assert [shape.number(n) for n in (None, 3, 0.5, 12.34, 1234.5)] == [
        "–", "3", "0.50", "12.3", "1,234",
    ]  # fmt: skip
    assert (shape.size(3), shape.size(2048)) == ("3 B", "2.0 KiB")
    assert shape.when(1_700_000_000_000_000) == "2023-11-14T22:13:20Z"
    assert [shape.when(us) for us in (None, -1, 2**62)] == ["", "", ""]
    assert shape.short("a\n b" * 400, 9) == "a ba ba …"


def test_a_form_token_is_of_one_seed_one_caller_one_deployment() -> None:
    seed = guard.new_seed()
    made = guard.form_token(b"k", seed, "eve")
    guard.check_form(b"k", seed, "eve", made, {"origin": "http://h:1", "host": "h:1"})
    for key, other, caller in ((b"x", seed, "eve"), (b"k", guard.new_seed(), "eve"),
                               (b"k", seed, "olga"), (b"k", None, "eve")):  # fmt: skip
        with pytest.raises(guard.Stale):
            guard.check_form(key, other, caller, made, {})
    with pytest.raises(guard.Stale):
        guard.fields(b"&".join(b"a%d=1" % n for n in range(guard.FIELDS_MAX + 1)))
    assert guard.fields(b"a=1&a=%202+&b=%ff") == {"a": "2", "b": "\ufffd"}


def test_no_template_lets_a_text_through_unescaped() -> None:
    folder = Path(files.__file__).parent
    templates = sorted((folder / "templates").glob("*.html"))
    assert len(templates) > 10
    for path in templates:
        text = path.read_text()
        assert not re.search(r"\|\s*safe|autoescape|\bstyle=|\son\w+=", text), path.name
        # Within a tag every value is in quotes, where escaping holds.
        assert not re.search(r"\s[\w-]+=\{\{", text), path.name
    for path in folder.glob("*.py"):
        assert "Markup" not in path.read_text(), path.name


def test_a_vendored_file_that_was_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(files.__file__).parent
    shutil.copytree(folder / "static", tmp_path / "static")
    monkeypatch.setattr(files, "files", lambda package: tmp_path)
    found, names = files.load()
    assert set(names) == {
        "htmx.min.js",
        "uplot.min.js",
        "uplot.min.css",
        "late.js",
        "late.css",
        "late.svg",
    }
    assert all(len(found[name].packed) < len(found[name].plain) for name in names.values())
    with (tmp_path / "static/vendor/htmx.min.js").open("a") as file:
        file.write(" ")
    with pytest.raises(ConfigError, match="was changed"):
        files.load()
