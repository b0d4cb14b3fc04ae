"""The telemetry contract and the emitter."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest

from late import events
from late.events import EVENTS, FENCED, PAGE_READ, Emitter, Event

FENCE = {"group": "default", "shard": 3, "epoch": 7}


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))


def test_the_contract_is_well_formed() -> None:
    for name, event in EVENTS.items():
        assert event.name == name
        values = (*event.measures, *event.tags, *event.series, *event.details)
        assert len(set(values)) == len(values), f"{name} names a value twice"
        assert all(re.fullmatch("[a-z][a-z_]*", word) for word in (name, *values))
        assert not {"payload", "args", "kwargs", "headers", "password"} & set(values)
        assert not {"task", "epoch", "error"} & set(event.tags), "tags have few values"
        assert getattr(events, name.upper()) is event


def test_subscribers_get_events_in_order_until_they_leave() -> None:
    emitter, first, second = Emitter(), Listener(), Listener()
    leave = emitter.subscribe(first)
    emitter.subscribe(second, [FENCED])
    emitter.emit(FENCED, **FENCE)
    emitter.emit(PAGE_READ, pages=1, records=2, bytes=3, duration_s=0.1, group="g")
    assert [name for name, _ in first.heard] == ["fenced", "page_read"]
    assert second.heard == [("fenced", FENCE)]
    leave()
    leave()
    emitter.emit(FENCED, **FENCE)
    assert len(first.heard) == 2
    assert len(second.heard) == 2


def test_the_same_function_may_subscribe_twice() -> None:
    emitter, listener = Emitter(), Listener()
    leave = emitter.subscribe(listener)
    emitter.subscribe(listener)
    leave()
    emitter.emit(FENCED, **FENCE)
    assert len(listener.heard) == 1


def test_nobody_listening_is_cheap_and_unchecked() -> None:
    emitter = Emitter()
    assert not emitter.wants(FENCED)
    emitter.emit(FENCED)
    emitter.subscribe(Listener(), [PAGE_READ])
    assert not emitter.wants(FENCED)
    assert emitter.wants(PAGE_READ)
    emitter.emit(FENCED)


@pytest.mark.parametrize("values", [{"group": "g"}, {**FENCE, "payload": b"x"}])
def test_values_outside_the_contract_are_our_own_mistake(values: dict[str, Any]) -> None:
    emitter = Emitter()
    emitter.subscribe(Listener())
    with pytest.raises(AssertionError, match="fenced takes"):
        emitter.emit(FENCED, **values)


def test_a_failing_subscriber_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    emitter, listener = Emitter(), Listener()

    def broken(event: Event, values: Mapping[str, Any]) -> None:
        raise ValueError("no")

    emitter.subscribe(broken)
    emitter.subscribe(listener)
    with caplog.at_level(logging.ERROR, "late.events"):
        emitter.emit(FENCED, **FENCE)
    assert listener.heard
    assert "a subscriber of fenced failed" in caplog.text
