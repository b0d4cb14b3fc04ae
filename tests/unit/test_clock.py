"""The database's clock as a worker knows it: behind, never ahead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import late
from late.clock import DRIFT_MAX, DatabaseClock
from late.store.base import Membership
from late.worker.worker import Worker

EPOCH_US = 1_800_000_000_000_000


class Manual:
    """A monotonic source that the test moves."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def test_before_the_first_sample_nothing_is_due() -> None:
    clock = DatabaseClock(Manual())
    assert clock.now_us() == 0
    assert clock.age_s is None
    assert clock.offset_us(EPOCH_US) is None


def test_it_runs_with_the_monotonic_source_a_little_slower() -> None:
    local = Manual()
    clock = DatabaseClock(local)
    clock.sample(EPOCH_US, local.s)
    assert clock.now_us() == EPOCH_US
    local.s += 100
    passed_us = clock.now_us() - EPOCH_US
    assert 100_000_000 * (1 - DRIFT_MAX) - 2 <= passed_us <= 100_000_000 * (1 - DRIFT_MAX)
    assert clock.age_s == 100


def test_a_time_that_the_database_has_not_confirmed_lately_makes_nothing_due() -> None:
    """The clock may have been set back since, and what it found due would start all the same."""
    local = Manual()
    clock = DatabaseClock(local, confirmed_s=5)
    assert clock.confirmed_us() == 0
    clock.sample(EPOCH_US, local.s)
    local.s += 4
    assert clock.confirmed_us() == clock.now_us() > EPOCH_US
    local.s += 1
    last_us = clock.confirmed_us()
    local.s += 60
    assert clock.confirmed_us() == last_us < clock.now_us() - 59_000_000
    clock.sample(EPOCH_US - 600_000_000, local.s)
    assert clock.confirmed_us() == clock.now_us() == EPOCH_US - 600_000_000


def test_a_worker_finds_tasks_due_by_the_confirmed_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(late.App(f"sqlite:///{tmp_path}/late.db"))
    local = Manual()
    monkeypatch.setattr(worker.clock, "_monotonic", local)
    worker.clock.sample(EPOCH_US, local.s)
    local.s += 10 * worker.settings.lease_ttl_s
    passed_s = (worker.scheduler._now_us() - EPOCH_US) / 1e6
    assert passed_s == pytest.approx(worker.settings.lease_ttl_s, rel=0.01)


async def test_a_view_of_the_fleet_brings_a_pass_and_ends_the_waits_of_jobs(tmp_path: Path) -> None:
    worker = Worker(late.App(f"sqlite:///{tmp_path}/late.db"))
    waiting = asyncio.create_task(worker.background._wait(0.6))
    await asyncio.sleep(0)
    worker.beats._waits = dict.fromkeys(worker.beats._waits, 0.0)  # as if it was nearly over
    worker.scheduler._work.clear()
    worker._observe(Membership(EPOCH_US, (), (), ()), 0.0, 0.0)
    assert worker.scheduler._work.is_set(), "no timer is needed for it"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.done()


def test_a_step_back_of_the_database_is_followed_with_the_next_sample() -> None:
    local = Manual()
    clock = DatabaseClock(local)
    clock.sample(EPOCH_US, local.s)
    local.s += 1
    clock.sample(EPOCH_US - 3_600_000_000, local.s)
    assert clock.now_us() == EPOCH_US - 3_600_000_000


def test_a_sample_that_was_overtaken_is_ignored() -> None:
    local = Manual()
    clock = DatabaseClock(local)
    local.s += 5
    clock.sample(EPOCH_US, local.s)
    clock.sample(EPOCH_US - 900_000, local.s - 1)
    assert clock.now_us() == EPOCH_US


def test_a_sample_from_another_thread_may_lie_a_hair_ahead() -> None:
    local = Manual()
    clock = DatabaseClock(local)
    clock.sample(EPOCH_US, local.s + 0.001)
    assert clock.now_us() == EPOCH_US


def test_offset_and_age_are_for_people() -> None:
    local = Manual()
    clock = DatabaseClock(local)
    clock.sample(EPOCH_US, local.s)
    assert clock.offset_us(EPOCH_US - 250_000) == 250_000
    assert clock.offset_us(EPOCH_US + 250_000) == -250_000


steps = st.lists(
    st.tuples(
        st.floats(0, 30),  # seconds until the database reads its clock
        st.floats(0, 5),  # seconds until the reply is here
        st.floats(0, 30),  # seconds until the worker looks
        st.one_of(st.just(0), st.integers(-(10**12), 10**12)),  # the database's clock is set
    ),
    min_size=1,
    max_size=12,
)


@given(
    steps=steps,
    drift=st.floats(-DRIFT_MAX, DRIFT_MAX),
    resolution_us=st.sampled_from([1, 1000, 1_000_000]),
    rounding_us=st.integers(0, 999),
    phase_us=st.integers(0, 999_999),
)
def test_never_ahead_of_what_the_database_would_show(
    steps: list[tuple[float, float, float, int]],
    drift: float,
    resolution_us: int,
    rounding_us: int,
    phase_us: int,
) -> None:
    """Given any delays, a drift within bounds, steps and rounding (down, up or to the nearest),
    when the worker looks, then the database would show at least as much."""
    local = Manual()
    clock = DatabaseClock(local, resolution_us=resolution_us)
    start_s = local.s
    set_us = 0
    offset_us = rounding_us * resolution_us // 1000  # 0: rounds down, half: to the nearest

    def database_us(slack_us: int = 0) -> int:
        true_us = (
            slack_us + EPOCH_US + phase_us + set_us + int((local.s - start_s) * (1 + drift) * 1e6)
        )
        return (true_us + offset_us) // resolution_us * resolution_us

    for until_read_s, until_reply_s, until_look_s, set_by_us in steps:
        set_us += set_by_us
        local.s += until_read_s
        read_us = database_us()
        local.s += until_reply_s
        clock.sample(read_us, local.s)
        assert clock.now_us() <= database_us()
        local.s += until_look_s
        # One microsecond for the truncation within the model itself.
        assert clock.now_us() <= database_us(slack_us=1)
        drift_us = (until_reply_s + until_look_s) * 1e6 * 2 * DRIFT_MAX
        lag_us = until_reply_s * 1e6 + drift_us + 2 * resolution_us
        assert clock.now_us() >= database_us() - lag_us - 10, "and not far behind"
