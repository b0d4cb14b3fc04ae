"""The chain of a debounced key: when its calls are due, and which of them are cancelled."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import late
from late.errors import DecodeError
from late.model.task import NewTask, Options, Record, TaskId
from late.outbox.debounce import Held, Place, place

DELAY, MOST = 5, 60
KEY = bytes(16) + bytes([1] * 16)
_ended = st.none() | st.integers(0, 30)


class Call(msgspec.Struct):
    """A call of the key, and its task."""

    at_us: int
    place: Place
    cancelled: bool = False


def calls_of(gaps: list[int], ends: list[int | None], delay: int, most: int) -> list[Call]:
    """Make one call after each gap. A task ends so long after it is due; None: not yet."""
    calls: list[Call] = []
    now = 1_000
    for gap, ended in zip(gaps, ends, strict=True):
        now += gap
        if not calls:
            calls.append(Call(now, Place(now, now + delay, cancels=False)))
            continue
        last = calls[-1]
        due_us = last.place.due_us
        sign = 1 if ended is not None and now >= due_us + ended else -1
        held = Held(TaskId("t"), last.place.first_us, sign * due_us)
        found = place(held, now, delay, most)
        last.cancelled = found.cancels
        calls.append(Call(now, found))
    return calls


@given(
    st.lists(st.tuples(st.integers(0, 40), _ended), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(0, 40),
)
@example([(1, None)] * 60, DELAY, MOST - DELAY)
def test_each_call_runs_in_time_and_none_is_lost(
    steps: list[tuple[int, int | None]], delay: int, more: int
) -> None:
    calls = calls_of([gap for gap, _ in steps], [ended for _, ended in steps], delay, delay + more)
    for n, call in enumerate(calls):
        # The first task from this call on that is not cancelled has its arguments, or later ones.
        running = next(one for one in calls[n:] if not one.cancelled)
        assert call.at_us <= running.place.due_us <= call.at_us + delay + more
        assert call.place.due_us <= call.at_us + delay


@given(st.lists(st.tuples(st.integers(0, 40), _ended), min_size=2, max_size=60))
def test_a_task_that_is_due_is_never_cancelled(steps: list[tuple[int, int | None]]) -> None:
    calls = calls_of([gap for gap, _ in steps], [ended for _, ended in steps], DELAY, MOST)
    for call, following in itertools.pairwise(calls):
        assert call.cancelled == (following.at_us < call.place.due_us)


def test_a_key_without_a_due_time_is_replaced_as_ever() -> None:
    held = Held(TaskId("t"), 100, None)
    assert place(held, 500, DELAY, MOST) == Place(500, 505, cancels=True)


def test_what_is_sealed_is_sealed_for_the_due_time() -> None:
    app = late.App("sqlite:///x.db")

    @app.task(codec=late.Signed(keys={"1": KEY}, current="1", bind_options="write"))
    def index(page: str) -> None: ...

    asked: Any = {"unique_key": "k", "on_conflict": "replace", "delay": 5, "max_wait": 60}
    row = app.row(index.options(**asked).call("a"))
    assert row.at is not None
    due = row.at(7_000_000)
    assert due.task_id == row.task_id
    options = msgspec.json.decode(str(due.options), type=Options)
    assert (options.at_us, options.delay_us) == (7_000_000, 0)
    assert index.decode(_record(due), options) == {"page": "a"}
    with pytest.raises(DecodeError) as refused:
        index.decode(_record(row), options)
    assert refused.value.reason == "bad_signature"


def _record(row: NewTask) -> Record:
    return Record(
        row.shard_id,
        1,
        row.task_id,
        row.queue,
        row.name,
        row.payload,
        row.headers,
        row.options,
        1,
        1,
    )
