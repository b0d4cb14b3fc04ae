"""The loop: one acts, what is decided is written down first, errors are survived."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from late import events
from late.autoscaler.autoscaler import Autoscaler, Lost
from late.autoscaler.decide import Decision
from late.autoscaler.policy import Policy
from late.autoscaler.sizing import CommandSizer, Finished, Pending, ResizeError
from late.autoscaler.sources import FileSource, Metrics, MetricsError
from late.control import Control
from late.errors import ConfigError, StoreUnavailable
from late.schema import migrate
from tests.unit.cli_kit import Cli

POLICY = Policy(min=1, max=100, smooth=1)


class FakeSource:
    """The CPU of now, as the database tells the time."""

    cpu: float | None = 80.0
    fails = False

    def read(self, now_us: int) -> Metrics:
        if self.fails:
            raise MetricsError("the metrics' server is away")
        return Metrics(now_us, self.cpu)

    def past(self, from_us: int, until_us: int) -> list[tuple[int, float]]:
        return [(from_us + 1, 30.0)]


class FakeSizer:
    """A database of which every resize works at once, unless it is told otherwise."""

    name = "shop"

    def __init__(self, size: int = 10) -> None:
        self.now, self.asked = size, list[int]()
        self.error: ResizeError | None = None
        self.slow = False

    def size(self) -> int:
        return self.now

    def resize(self, before: int, size: int) -> Pending:
        self.asked.append(size)
        if self.error is not None:
            raise self.error
        if self.slow:
            return Slow(self, size)
        self.now = size
        return Finished()


class Slow:
    def __init__(self, sizer: FakeSizer, size: int) -> None:
        self._sizer, self._size = sizer, size

    def done(self) -> bool:
        if self._sizer.error is not None:
            raise self._sizer.error
        if not self._sizer.slow:
            self._sizer.now = self._size
        return not self._sizer.slow


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    url = f"sqlite:///{tmp_path}/shop.db"
    migrate.upgrade(url)
    with Control(url) as made:
        yield made


class Kit:
    def __init__(self, control: Control, owner: str, **settings: Any) -> None:
        self.source, self.sizer = FakeSource(), settings.pop("sizer", None) or FakeSizer()
        self.time, self.said = 0.0, list[tuple[str, dict[str, Any]]]()
        emitter = events.Emitter()
        emitter.subscribe(lambda event, values: self.said.append((event.name, dict(values))))
        self.scaler = Autoscaler(
            settings.pop("policy", POLICY), self.source, self.sizer, control.autoscale_journal(),
            owner=owner, monotonic=lambda: self.time, emit=emitter, **settings,
        )  # fmt: skip

    def names(self) -> list[str]:
        return [name for name, _ in self.said if name != "controller"]


def test_a_change_is_decided_written_down_and_carried_out(control: Control) -> None:
    kit = Kit(control, "a")
    assert kit.scaler.look() is not None
    assert kit.sizer.asked == [13]
    (row,) = control.decisions()
    assert (row.rule, row.from_size, row.to_size, row.result) == ("linear", 10, 13, "applied")
    assert row.inputs is not None
    assert row.inputs["cpu"] == 80.0
    (view,) = control.controllers()
    assert (view.name, view.owner, view.epoch, view.decisions) == ("shop", "a", 1, 1)
    assert view.up_us == row.at_us
    assert kit.names() == ["autoscaled"]


def test_cooldowns_go_on_under_the_next_controller(control: Control) -> None:
    first = Kit(control, "a")
    first.scaler.look()
    stopped = threading.Event()
    stopped.set()
    first.scaler.run(stopped)
    second = Kit(control, "b", sizer=first.sizer)
    decision = second.scaler.look()
    assert decision is not None
    assert not decision.changes
    assert "waits" in decision.why
    assert control.controllers()[0].epoch == 2


def test_two_controllers_one_acts(control: Control) -> None:
    first = Kit(control, "a")
    second = Kit(control, "b", sizer=first.sizer)
    first.source.cpu = second.source.cpu = 65.0
    assert first.scaler.look() is not None
    assert second.scaler.look() is None
    assert [each.owner for each in control.decisions()] == ["a"]


def test_a_controller_that_slept_changes_nothing(control: Control) -> None:
    """Paused between its look and its record: another took the term over meanwhile."""
    sleeper = Kit(control, "a", ttl_s=0.000001)
    taker = Kit(control, "b", sizer=sleeper.sizer)
    read = sleeper.source.read

    def slept(now_us: int) -> Metrics:
        found = read(now_us)
        taker.source.cpu = 65.0
        assert taker.scaler.look() is not None
        return found

    sleeper.source.read = slept  # type: ignore[method-assign]
    with pytest.raises(Lost):
        sleeper.scaler.look()
    assert sleeper.sizer.asked == []
    assert [each.owner for each in control.decisions()] == ["b"]


def test_trust_in_a_term_ends_by_the_monotonic_clock(control: Control) -> None:
    """Slept, and nobody has taken over yet: it still must not act."""
    kit = Kit(control, "a", ttl_s=60.0)
    read = kit.source.read

    def slept(now_us: int) -> Metrics:
        kit.time += 59.0
        return read(now_us)

    kit.source.read = slept  # type: ignore[method-assign]
    with pytest.raises(Lost):
        kit.scaler.look()
    assert kit.sizer.asked == []
    assert control.decisions()[0].result == "failed: too slow"
    assert control.controllers()[0].up_us is None


@pytest.mark.parametrize(
    "cause",
    ["PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "NOT_FOUND"],
)
def test_a_refused_resize_is_one_line_and_tried_again_later(control: Control, cause: str) -> None:
    kit = Kit(control, "a")
    kit.sizer.error = ResizeError(cause, "because")
    for _ in range(5):
        kit.scaler.look()
    assert kit.sizer.asked == [13]
    assert kit.names() == ["autoscaler_blind"]
    assert cause in kit.said[-1][1]["error"]
    assert control.decisions()[0].result == f"failed: {cause}: because"
    # A resize that was refused was no step: no cool-down holds the next try.
    kit.time += 31
    kit.scaler.look()
    assert kit.sizer.asked == [13, 13]
    kit.time += 31
    kit.scaler.look()
    assert len(kit.sizer.asked) == 2, "the second pause is longer"
    kit.time += 31
    kit.sizer.error = None
    kit.scaler.look()
    assert kit.sizer.now == 13
    assert control.decisions()[0].result == "applied"


def test_a_slow_resize_is_waited_for_and_nothing_else_is_begun(control: Control) -> None:
    kit = Kit(control, "a")
    kit.sizer.slow = True
    for _ in range(3):
        kit.scaler.look()
    assert kit.sizer.asked == [13]
    assert control.decisions()[0].result == "started"
    assert control.controllers()[0].last == "to 13: under way"
    kit.sizer.slow = False
    kit.scaler.look()
    assert [each.result for each in control.decisions(changes=True)] == ["applied"]


def test_a_resize_that_fails_under_way(control: Control) -> None:
    kit = Kit(control, "a")
    kit.sizer.slow = True
    kit.scaler.look()
    kit.sizer.error = ResizeError("RESOURCE_EXHAUSTED", "no nodes left")
    kit.scaler.look()
    assert control.decisions()[0].result == "failed: RESOURCE_EXHAUSTED: no nodes left"


def test_what_a_dead_controller_began_is_said_to_be_unknown(control: Control) -> None:
    journal = control.autoscale_journal()
    term = journal.hold("shop", "a", 0.000001)
    assert term is not None
    kit = Kit(control, "b")
    kit.source.cpu = 65.0
    journal.record(term, Decision(term.now_us, "linear", 10, 13, 13, "", {}), "started")
    kit.scaler.look()
    assert [each.result for each in control.decisions()] == [
        "held",
        "unknown: its controller ended",
    ]


def test_missing_metrics_hold_and_are_said_once(control: Control) -> None:
    kit = Kit(control, "a")
    kit.source.fails = True
    for _ in range(3):
        kit.scaler.look()
    assert kit.sizer.asked == []
    (row,) = control.decisions()
    assert (row.rule, row.result) == ("hold", "held")
    assert "away" in row.why
    assert kit.names() == ["autoscaled"]


def test_an_unknown_size_changes_nothing(control: Control) -> None:
    kit = Kit(control, "a")

    def unknown() -> int:
        raise ResizeError("NOT_FOUND", "no such instance")

    kit.sizer.size = unknown  # type: ignore[method-assign]
    assert kit.scaler.look() is None
    assert "NOT_FOUND" in str(control.controllers()[0].last)
    assert control.decisions() == []


def test_a_dry_run_records_and_changes_nothing(control: Control) -> None:
    kit = Kit(control, "a", policy=Policy(min=1, max=100, smooth=1, dry_run=True))
    kit.scaler.look()
    kit.scaler.look()
    assert kit.sizer.asked == []
    assert [(each.to_size, each.result) for each in control.decisions()] == [(13, "dry run")]


def test_a_forecast_comes_from_the_sources_past(control: Control) -> None:
    kit = Kit(control, "a", policy=Policy(min=1, max=100, predict_weeks=3))
    kit.source.cpu = 65.0
    kit.scaler.look()
    assert kit.sizer.asked == [43]  # 30 at 70 %
    assert control.decisions()[0].rule == "forecast"


def test_the_loop_survives_its_database(control: Control) -> None:
    kit = Kit(control, "a", every_s=1)
    stop, journal = threading.Event(), kit.scaler._journal

    class Broken:
        def hold(self, *_: object) -> None:
            stop.set()
            raise StoreUnavailable("the database is away")

        def __getattr__(self, name: str) -> Any:
            return getattr(journal, name)

    kit.scaler._journal = Broken()  # type: ignore[assignment]
    kit.scaler.run(stop)
    assert kit.names() == ["autoscaler_blind"]


# --- commands and files


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "tool.py"
    path.write_text(text)
    return str(path)


TOOL = """
import os, sys
where = os.path.join(os.path.dirname(__file__), "size")
if len(sys.argv) == 1:
    print(open(where).read())
elif sys.argv[1] == "99":
    sys.exit("no more\\nquota is used up")
else:
    assert os.environ["LATE_SIZE"] == sys.argv[1]
    open(where, "w").write(sys.argv[1])
"""


def test_a_command_sizes_what_late_does_not_know(tmp_path: Path) -> None:
    tool = script(tmp_path, TOOL)
    (tmp_path / "size").write_text("4")
    command = [sys.executable, tool]
    sizer = CommandSizer("crdb", size=command, resize=[*command, "{size}"])
    assert sizer.size() == 4
    assert sizer.resize(4, 7).done()
    assert sizer.size() == 7
    with pytest.raises(ResizeError, match="exit 1: quota is used up"):
        sizer.resize(7, 99)
    (tmp_path / "size").write_text("seven; drop table")
    with pytest.raises(ResizeError, match="no size"):
        sizer.size()


def test_commands_that_hang_or_are_not_there() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(ResizeError, match="timed out"):
        CommandSizer("x", size=sleeper, resize=sleeper, timeout_s=0.2).size()
    with pytest.raises(ResizeError, match="not run"):
        CommandSizer("x", size=["/nowhere/tool"], resize=["x"]).size()
    with pytest.raises(ConfigError):
        CommandSizer("x", size=[], resize=["x"])


def test_a_file_of_metrics(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    path.write_text(
        "at,cpu,size,storage_bytes\n1000000,40,10,\n2026-01-05T00:00:00Z,61.5,12,1e12\n17,9"
    )
    found = FileSource(path).read(0)
    # The last line has no end yet: it is being written.
    assert found == Metrics(1_767_571_200_000_000, 61.5, 12, None, 10**12)
    assert FileSource(path).past(0, 2_000_000) == [(1_000_000, 4.0)]


@pytest.mark.parametrize(
    "text",
    ["at,cpu\nyesterday,5\n", "at,cpu\n2026-01-05T00:00:00,5\n", "at\n5\n", "at,cpu\n5,nan\n"],
)
def test_a_file_that_cannot_be_read_is_no_metrics(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cpu.csv"
    path.write_text(text)
    with pytest.raises(MetricsError):
        FileSource(path).read(0)
    with pytest.raises(MetricsError):
        FileSource(tmp_path / "none.csv").read(0)


def test_run_status_and_history_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    tool = script(tmp_path, TOOL)
    (tmp_path / "size").write_text("4")
    (tmp_path / "policy.toml").write_text("min = 2\nmax = 20\nsmooth = 1\n")
    with Control(cli.url) as control:
        now = control.now()
    (tmp_path / "cpu.csv").write_text(f"at,cpu\n{now},85\n")
    command = f"{sys.executable} {tool}"
    arguments = (
        "autoscale", "run", "-p", "policy.toml", "--metrics", "cpu.csv", "--size-command", command,
        "--resize-command", f"{command} {{size}}", "--name", "crdb", "--once",
    )  # fmt: skip
    assert "4 to 6" in cli.fine(*arguments, "--dry-run").out
    assert (tmp_path / "size").read_text() == "4"
    assert cli.fine(*arguments, "--json").json["decision"]["to_size"] == 6
    assert (tmp_path / "size").read_text() == "6"
    (view,) = cli.fine("autoscale", "status", "--json").json["controllers"]
    assert (view["name"], view["owner"], view["epoch"]) == ("crdb", None, 2)
    rows = cli.fine("autoscale", "history", "--json").json["decisions"]
    assert [row["result"] for row in rows] == ["applied", "dry run"]
    assert json.dumps(rows[0]["inputs"])
    assert "linear" in cli.fine("autoscale", "history", "--changes").out
    assert "crdb" in cli.fine("autoscale", "status").out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "--spanner"),
        (("--size-command", "echo 4"), "go together"),
        (("--size-command", "echo four", "--resize-command", "true"), "--size-command echo four"),
        (("--spanner", "shop"), "projects/PROJECT/instances"),
        (("--size-command", "echo '4", "--resize-command", "true"), "cannot be read"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(
    cli: Cli, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    (tmp_path / "policy.toml").write_text("min = 2\nmax = 20\n")
    (tmp_path / "cpu.csv").write_text("at,cpu\n")
    run = ("autoscale", "run", "-p", "policy.toml", "--metrics", "cpu.csv", "--once", *more)
    assert words in cli.refused(*run)
    (tmp_path / "policy.toml").write_text("min = 30\nmax = 20\n")
    assert "min = 30" in cli.refused(*run)


def test_monitoring_of_nothing_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("min = 2\nmax = 20\n")
    start = ("autoscale", "run", "-p", "policy.toml", "--size-command", "echo 4",
             "--resize-command", "true", "--metrics")  # fmt: skip
    assert "--spanner" in cli.refused(*start, "monitoring")
    assert "none.csv" in cli.refused(*start, "none.csv")
