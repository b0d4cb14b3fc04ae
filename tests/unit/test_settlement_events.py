"""The events of a settlement say what the journal has, in the units of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from late import events
from late.events import Emitter, Event
from late.model.task import Cursor, Epoch, ShardId, Usage
from late.scheduler import settlement_events
from late.store.base import Settlement, Tick


def told(**carried: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events of a settlement that carries this, at the second 100."""
    heard: list[tuple[str, dict[str, Any]]] = []

    def listen(event: Event, values: Mapping[str, Any]) -> None:
        heard.append((event.name, dict(values)))

    emitter = Emitter()
    emitter.subscribe(listen)
    row = Settlement("id", "g", ShardId(0), 2, Epoch(1), "me", Cursor(""), (), **carried)
    settlement_events.settled(emitter, row, 100_000_000)
    return heard


def test_times_are_told_in_seconds() -> None:
    usage = Usage("q", "n", "local", "done", 2, 3, busy_us=1_500_000, waiting_us=250_000)
    [(name, values)] = told(usage=(usage,))
    assert name == events.ENDED.name
    assert (values["count"], values["attempts"]) == (2, 3)
    assert (values["busy_s"], values["waiting_s"]) == (1.5, 0.25)


def test_a_tick_tells_how_late_it_is_and_a_schedule_that_it_was_the_last() -> None:
    ticks = (Tick("hourly", 98_000_000, 200_000_000, ()), Tick("once", 101_000_000, None, ()))
    assert [
        (name, values["schedule"], values.get("lateness_s")) for name, values in told(ticks=ticks)
    ] == [
        (events.TICK.name, "hourly", 2.0),
        (events.TICK.name, "once", 0.0),
        (events.SCHEDULE_DISABLED.name, "once", None),
    ]
