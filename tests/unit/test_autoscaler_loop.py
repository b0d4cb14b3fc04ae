"""The loop: one acts, what is decided is written down first, errors are survived."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from late import events
from late.autoscaler.autoscaler import Autoscaler, TermLost
from late.autoscaler.decide import Decision
from late.autoscaler.metrics.source import Metrics, MetricsError
from late.autoscaler.policy import Policy
from late.autoscaler.targets.sizer import CompletedResize, PendingResize, ResizeError
from late.control import Control
from late.errors import StoreUnavailable
from tests.support import sqlite

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

    def resize(self, before: int, size: int) -> PendingResize:
        self.asked.append(size)
        if self.error is not None:
            raise self.error
        if self.slow:
            return Slow(self, size)
        self.now = size
        return CompletedResize()


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
    url = sqlite.database(tmp_path / "shop.db")
    with Control(url) as made:
        yield made


class Kit:
    def __init__(self, control: Control, owner: str, **settings: Any) -> None:
        self.source, self.sizer = FakeSource(), settings.pop("sizer", None) or FakeSizer()
        self.time, self.said = 0.0, list[tuple[str, dict[str, Any]]]()
        self.looks = list[dict[str, Any]]()
        emitter = events.Emitter()
        emitter.subscribe(self._heard)
        self.scaler = Autoscaler(
            settings.pop("policy", POLICY), self.source, self.sizer, control.autoscalers.journal(),
            owner=owner, monotonic=lambda: self.time, emit=emitter, **settings,
        )  # fmt: skip

    def _heard(self, event: events.Event, values: Mapping[str, Any]) -> None:
        """Looks apart: they are for metrics, the others for people."""
        if event is events.AUTOSCALER_LOOKED:
            self.looks.append(dict(values))
        else:
            self.said.append((event.name, dict(values)))

    def names(self) -> list[str]:
        return [name for name, _ in self.said if name != "controller"]


def test_a_change_is_decided_written_down_and_carried_out(control: Control) -> None:
    kit = Kit(control, "a")
    assert kit.scaler.look() is not None
    assert kit.sizer.asked == [13]
    (row,) = control.autoscalers.decisions()
    assert (row.rule, row.from_size, row.to_size, row.result) == ("linear", 10, 13, "applied")
    assert row.inputs is not None
    assert row.inputs["cpu"] == 80.0
    (view,) = control.autoscalers.all()
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
    assert control.autoscalers.all()[0].epoch == 2


def test_two_controllers_one_acts(control: Control) -> None:
    first = Kit(control, "a")
    second = Kit(control, "b", sizer=first.sizer)
    first.source.cpu = second.source.cpu = 65.0
    assert first.scaler.look() is not None
    assert second.scaler.look() is None
    assert [each.owner for each in control.autoscalers.decisions()] == ["a"]


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
    with pytest.raises(TermLost):
        sleeper.scaler.look()
    assert sleeper.sizer.asked == []
    assert [each.owner for each in control.autoscalers.decisions()] == ["b"]


def test_trust_in_a_term_ends_by_the_monotonic_clock(control: Control) -> None:
    """Slept, and nobody has taken over yet: it still must not act."""
    kit = Kit(control, "a", ttl_s=60.0)
    read = kit.source.read

    def slept(now_us: int) -> Metrics:
        kit.time += 59.0
        return read(now_us)

    kit.source.read = slept  # type: ignore[method-assign]
    with pytest.raises(TermLost):
        kit.scaler.look()
    assert kit.sizer.asked == []
    assert control.autoscalers.decisions()[0].result == "failed: too slow"
    assert control.autoscalers.all()[0].up_us is None


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
    assert control.autoscalers.decisions()[0].result == f"failed: {cause}: because"
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
    assert control.autoscalers.decisions()[0].result == "applied"


def test_while_it_waits_after_a_failure_the_status_says_why(control: Control) -> None:
    kit = Kit(control, "a")
    kit.sizer.error = ResizeError("PERMISSION_DENIED", "because")
    kit.scaler.look()
    kit.scaler.look()
    said = str(control.autoscalers.all()[0].last)
    assert said.startswith("to 13: again in ")
    assert "PERMISSION_DENIED: because" in said
    assert kit.said[-1][1]["error"] == "10 to 13: PERMISSION_DENIED: because"
    assert kit.scaler.result == "failed: PERMISSION_DENIED: because"


def test_one_that_only_waits_says_so_once(control: Control) -> None:
    first, second = Kit(control, "a"), Kit(control, "b")
    first.scaler.look()
    for _ in range(3):
        second.scaler.look()
    assert [(name, values["acts"]) for name, values in second.said] == [("controller", False)]


def test_every_look_is_a_metric_and_looks_without_metrics_are_told_apart(control: Control) -> None:
    """In a quiet week nothing is decided, and the size must still be seen."""
    kit = Kit(control, "a")
    kit.source.cpu = 65.0
    kit.scaler.look()
    kit.source.fails = True
    for _ in range(2):
        kit.scaler.look()
    assert [(each["rule"], each["size"], each["wanted"]) for each in kit.looks] == [
        ("within", 10, 10), ("hold", 10, 10), ("hold", 10, 10),
    ]  # fmt: skip


def test_a_slow_resize_is_waited_for_and_nothing_else_is_begun(control: Control) -> None:
    kit = Kit(control, "a")
    kit.sizer.slow = True
    for _ in range(3):
        kit.scaler.look()
    assert kit.sizer.asked == [13]
    assert control.autoscalers.decisions()[0].result == "started"
    assert control.autoscalers.all()[0].last == "to 13: under way"
    assert kit.said[-1][1]["result"] == "started"
    kit.sizer.slow = False
    kit.scaler.look()
    assert [each.result for each in control.autoscalers.decisions(changes=True)] == ["applied"]


def test_a_resize_that_fails_under_way(control: Control) -> None:
    kit = Kit(control, "a")
    kit.sizer.slow = True
    kit.scaler.look()
    kit.sizer.error = ResizeError("RESOURCE_EXHAUSTED", "no nodes left")
    kit.scaler.look()
    assert control.autoscalers.decisions()[0].result == "failed: RESOURCE_EXHAUSTED: no nodes left"


def test_what_a_dead_controller_began_is_said_to_be_unknown(control: Control) -> None:
    journal = control.autoscalers.journal()
    term = journal.hold("shop", "a", 0.000001)
    assert term is not None
    kit = Kit(control, "b")
    kit.source.cpu = 65.0
    journal.record(term, Decision(term.now_us, "linear", 10, 13, 13, "", {}), "started")
    kit.scaler.look()
    assert [each.result for each in control.autoscalers.decisions()] == [
        "held",
        "unknown: its controller ended",
    ]


def test_missing_metrics_hold_and_are_said_once(control: Control) -> None:
    kit = Kit(control, "a")
    kit.source.fails = True
    for _ in range(3):
        kit.scaler.look()
    assert kit.sizer.asked == []
    (row,) = control.autoscalers.decisions()
    assert (row.rule, row.result) == ("hold", "held")
    assert "away" in row.why
    assert kit.names() == ["autoscaled"]


def test_an_unknown_size_changes_nothing(control: Control) -> None:
    kit = Kit(control, "a")

    def unknown() -> int:
        raise ResizeError("NOT_FOUND", "no such instance")

    kit.sizer.size = unknown  # type: ignore[method-assign]
    assert kit.scaler.look() is None
    assert "NOT_FOUND" in str(control.autoscalers.all()[0].last)
    assert control.autoscalers.decisions() == []


def test_a_dry_run_records_and_changes_nothing(control: Control) -> None:
    kit = Kit(control, "a", policy=Policy(min=1, max=100, smooth=1, dry_run=True))
    kit.scaler.look()
    kit.scaler.look()
    assert kit.sizer.asked == []
    assert [(each.to_size, each.result) for each in control.autoscalers.decisions()] == [
        (13, "dry run")
    ]


def test_a_forecast_comes_from_the_sources_past(control: Control) -> None:
    kit = Kit(control, "a", policy=Policy(min=1, max=100, predict_weeks=3))
    kit.source.cpu = 65.0
    kit.scaler.look()
    assert kit.sizer.asked == [43]  # 30 at 70 %
    assert control.autoscalers.decisions()[0].rule == "forecast"


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
