"""A replay of a window: a group runs again what was enqueued in it, on every store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import late
from late.control import Control
from late.control.groups import window
from late.errors import ConfigError, Conflict
from late.outbox import connect
from late.testing import drain
from tests.conformance.backends import Backend
from tests.integration.effects_kit import select

RATE = 1_000.0


class Runs:
    """The runs of a service's tasks: (number, whether it is a replay)."""

    def __init__(self, url: str) -> None:
        self.app = app = late.App(url)
        self.seen: list[tuple[int, bool]] = []

        @app.task(queue="orders")
        async def ship(ctx: late.AsyncContext, n: int) -> None:
            self.seen.append((n, ctx.is_replay))
            if n < 0:
                raise late.Discard("no")

        @app.task(queue="mail")
        async def mail(ctx: late.AsyncContext, n: int) -> None:
            self.seen.append((n, ctx.is_replay))

        self.ship, self.mail = ship, mail

    def enqueue(self, *calls: Any) -> list[str]:
        with connect(str(self.app.url)) as tx:
            return [str(each) for each in self.app.enqueue_many(tx, calls)]

    def drained(self, wait_s: float = 0.0) -> Counter[tuple[int, bool]]:
        """Run what there is, and return what has run since the last call."""
        self.seen.clear()
        drain(self.app, wait_s=wait_s, timeout_s=60)
        return Counter(self.seen)


@pytest.fixture
def runs(url: str) -> Runs:
    return Runs(url)


@pytest.fixture
def control(url: str) -> Iterator[Control]:
    with Control(url) as made:
        made.groups.set_retention(3_600)
        yield made


def moment(control: Control) -> int:
    """Return a time between what was enqueued and what will be."""
    until = control.now() + 2_000
    while control.now() <= until:
        time.sleep(0.005)
    return until


def replayed(control: Control, *span: int, **more: Any) -> window.WindowReplay:
    """Replay a window to its end."""
    found = control.groups.replay_window("default", *span, rate=RATE, **more)
    while not found.finished:
        found = control.groups.replay_window("default", *span, rate=RATE)
    return found


def test_what_was_enqueued_in_the_window_runs_again_and_nothing_else(
    control: Control, runs: Runs
) -> None:
    runs.enqueue(*(runs.ship.call(n) for n in range(3)))
    since = moment(control)
    runs.enqueue(*(runs.ship.call(n) for n in range(10, 14)), runs.mail.call(20))
    until = moment(control)
    runs.enqueue(runs.ship.call(30))
    assert len(runs.drained()) == 9
    shown = control.groups.replay_window("default", since, until, rate=RATE, dry_run=True)
    assert {queue: count.n for queue, count in shown.queues.items()} == {"orders": 4, "mail": 1}
    assert (shown.copied.n, shown.finished) == (5, False)
    assert runs.drained() == {}, "a rehearsal changes nothing"

    assert replayed(control, since, until).copied.n == 5
    assert runs.drained(5.0) == Counter([(n, True) for n in (10, 11, 12, 13, 20)])
    assert control.verify().problems == ()
    with pytest.raises(Conflict, match="has replayed this window, 5 tasks"):
        replayed(control, since, until)
    # The group goes on where it is, and can be asked for the window once more.
    runs.enqueue(runs.ship.call(31))
    assert replayed(control, since, until, again=True).copied.n == 5
    assert runs.drained(5.0) == Counter([(n, True) for n in (10, 11, 12, 13, 20)] + [(31, False)])
    assert control.verify().problems == ()


def test_a_replay_that_is_killed_goes_on_and_copies_nothing_twice(
    control: Control, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = moment(control)
    runs.enqueue(*(runs.ship.call(n) for n in range(40)))
    until = moment(control)
    assert len(runs.drained()) == 40
    monkeypatch.setattr(window, "SLICE", 7)
    first = control.groups.replay_window("default", since, until, rate=RATE)
    assert 0 < first.copied.n < 40
    assert not first.finished

    class Killed(Exception):
        pass

    def dies(_: object) -> None:
        raise Killed

    # It dies after the timers of a slice are inserted, before the commit.
    with monkeypatch.context() as patch:
        patch.setattr(window, "delete", dies)
        with pytest.raises(Killed):
            control.groups.replay_window("default", since, until, rate=RATE)
    with pytest.raises(Conflict, match="unfinished replay of"):
        control.groups.replay_window("default", since, until - 1, rate=RATE)
    assert replayed(control, since, until).copied.n == 40
    assert runs.drained(5.0) == Counter([(n, True) for n in range(40)])
    assert control.verify().problems == ()


def test_what_has_not_ended_is_left_where_it_is(control: Control, runs: Runs) -> None:
    since = moment(control)
    runs.enqueue(runs.ship.call(1))
    later, cancelled = runs.enqueue(
        runs.ship.options(delay=3_600).call(2), runs.ship.options(delay=3_600).call(3)
    )
    assert runs.drained() == Counter([(1, False)])
    with connect(str(runs.app.url)) as tx:
        runs.app.cancel(tx, cancelled)
    runs.drained()
    runs.enqueue(runs.ship.call(4))  # nobody has read it yet
    until = moment(control)
    found = replayed(control, since, until)
    assert (found.copied.n, found.cancelled) == (1, 1)
    assert runs.drained(5.0) == Counter([(1, True), (4, False)])
    with connect(str(runs.app.url)) as tx:
        runs.app.reschedule(tx, later, delay=0)
    assert runs.drained(5.0) == Counter([(2, False)])
    assert control.verify().problems == ()


def test_tasks_fall_due_at_the_rate(
    control: Control, runs: Runs, backend: Backend, url: str
) -> None:
    since = moment(control)
    runs.enqueue(*(runs.ship.call(n) for n in range(60)))
    until = moment(control)
    runs.drained()
    found = control.groups.replay_window("default", since, until, rate=0.5)
    assert 5 <= found.copied.n < 60, "ten seconds of it"
    assert not found.finished
    assert found.wait_s > 0
    due = select(backend, url, "select due_at_us from late_timer order by due_at_us")
    assert {after - before for (before,), (after,) in pairwise(due)} == {2_000_000}
    # Too early for more.
    assert control.groups.replay_window("default", since, until, rate=0.5).copied == found.copied


def test_what_cannot_be_replayed(control: Control) -> None:
    now = control.now()
    for span, rate, says in (
        ((now, now), RATE, "ends before it begins"),
        ((0, now + 60_000_000), RATE, "has not come"),
        ((0, now), 0.0, "rate 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            control.groups.replay_window("default", *span, rate=rate)
    control.groups.change("default", {"max_age_s": 60})
    with pytest.raises(ConfigError, match="max_age back first"):
        control.groups.replay_window("default", 0, now, rate=RATE)
