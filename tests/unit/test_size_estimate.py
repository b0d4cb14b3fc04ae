"""The formulas of `late size`, on constants that are easy to add up."""

from __future__ import annotations

import math
import subprocess
import sys
from random import Random
from typing import Any

import msgspec
import pytest

from bench.steady import check
from bench.steady.figures import filled, fit, with_bytes
from late.errors import ConfigError
from late.model.size.estimate import (
    DAY_S,
    DETAIL_S,
    MINUTES_S,
    PRUNE_S,
    SUM_ROWS,
    Estimate,
    Load,
    RateFigures,
    StoreFigures,
    estimate,
    journal_rows_per_s,
)
from late.model.size.figures import FIGURES
from late.store.base import JOURNAL_DETAIL_S, JOURNAL_MINUTE_S
from late.store.common.compaction import ROW_MIN
from scripts import size_figures

WAIT_S = 0.1


def rows_at(rate: float, wait_s: float = WAIT_S, shards: int = 8) -> float:
    """Rows a task if a worker settles all its shards a wait after the first end of any."""
    every_s = 1 / rate + wait_s
    return shards / every_s * (1 - math.exp(-rate / shards * every_s)) / rate


STORE = StoreFigures(
    measured="2026",
    loop_ms=3.5,
    shards=8,
    payload_bytes=120,
    rates=tuple(
        RateFigures(
            rate=rate,
            journal_rows=rows_at(rate),
            journal_row_bytes=300.0,
            worker_wal_bytes=wal,
            worker_cpu_us=cpu,
            server_cpu_us=cpu / 2,
        )
        for rate, wal, cpu in ((1.0, 400.0, 4e3), (100.0, 400.0, 1e3), (1_000.0, 100.0, 250.0))
    ),
    log_task_bytes=300.0,
    producer_wal_bytes=500.0,
    idle_worker_cpu=0.01,
    idle_server_cpu=0.002,
    idle_wal_per_s=200.0,
    connections=6.25,
    delayed=RateFigures(
        rate=100, journal_rows=1, worker_wal_bytes=900.0, worker_cpu_us=500.0, server_cpu_us=300.0
    ),
    retried=RateFigures(
        rate=100, journal_rows=1, worker_wal_bytes=800.0, worker_cpu_us=400.0, server_cpu_us=200.0
    ),
)  # fmt: skip


def of(**load: Any) -> Estimate:
    return estimate(Load(**{"rate": 100, **load}), STORE)


def test_a_measured_rate_comes_out_as_it_was_measured() -> None:
    found = of()
    tasks = 100 * DAY_S
    assert found.log_bytes_per_day == tasks * 300
    assert found.journal_rows_per_day == pytest.approx(tasks * rows_at(100))
    assert found.journal_bytes_per_day == pytest.approx(tasks * rows_at(100) * 300)
    assert found.wal_producers_bytes_per_day == tasks * 500
    assert found.wal_workers_bytes_per_day == pytest.approx(tasks * 400 + 200 * DAY_S)
    assert found.workers_cpu_cores == pytest.approx(0.01 + 100 * 1_000e-6)
    assert found.server_cpu_cores == pytest.approx(0.002 + 100 * 500e-6)
    assert found.connections == 7


@pytest.mark.parametrize("rate", [3, 30, 400, 5_000])
def test_rows_follow_the_wait_between_and_beyond_measured_rates(rate: float) -> None:
    found = journal_rows_per_s(Load(rate=rate), STORE)
    assert found == pytest.approx(rate * rows_at(rate))


def test_more_shards_share_the_rows_less() -> None:
    few, many = (journal_rows_per_s(Load(rate=100, shards=n), STORE) for n in (8, 64))
    assert few < many < 100
    assert many == pytest.approx(100 * rows_at(100, shards=64))


def test_groups_repeat_what_workers_write_and_not_what_producers_do() -> None:
    one, two = of(), of(groups=2)
    assert two.journal_rows_per_day == pytest.approx(2 * one.journal_rows_per_day)
    assert two.wal_producers_bytes_per_day == one.wal_producers_bytes_per_day
    assert two.log_bytes_per_day == one.log_bytes_per_day
    assert two.wal_workers_bytes_per_day == pytest.approx(
        2 * (one.wal_workers_bytes_per_day or 0) - 200 * DAY_S
    )


def test_a_larger_payload_is_in_log_and_wal_once_and_again_where_a_task_is_parked() -> None:
    small, large = of(delayed=0.5), of(delayed=0.5, payload=1_120)
    tasks = 100 * DAY_S
    for name in ("log_bytes_per_day", "wal_producers_bytes_per_day"):
        assert getattr(large, name) - getattr(small, name) == pytest.approx(1_000 * tasks)
    more = large.wal_workers_bytes_per_day or 0.0
    assert more - (small.wal_workers_bytes_per_day or 0.0) == pytest.approx(0.5 * 1_000 * tasks)
    assert large.journal_bytes_per_day == small.journal_bytes_per_day


def test_delays_and_retries_add_what_they_were_measured_to_cost() -> None:
    plain, shaped = of(), of(delayed=0.2, retries=0.1)
    assert shaped.workers_cpu_cores == pytest.approx(
        (plain.workers_cpu_cores or 0) + 100 * (0.2 * 500 + 0.1 * 400) / 1e6
    )
    # A parked task is settled once more.
    assert plain.journal_rows_per_day < shaped.journal_rows_per_day


@pytest.mark.parametrize("retries", [0.0, 0.01, 0.1, 0.5, 1])
def test_rows_with_retries_are_those_of_a_run_of_events(retries: float) -> None:
    """Live half an hour of a worker: ends wait for company, failed attempts settle their shard."""
    load = Load(rate=80, retries=retries)
    ends, failures = load.rate * (1 + retries), load.rate * retries
    random = Random(7)
    now, rows = 0.0, 0
    waiting: dict[int, float] = {}
    urgent: set[int] = set()
    urgent_due = math.inf
    while now < 1_800:
        now += random.expovariate(ends)
        if now > urgent_due:
            rows, urgent_due = rows + len(urgent), math.inf
            for shard in urgent:
                del waiting[shard]
            urgent.clear()
        if waiting and now > min(waiting.values()) + WAIT_S:
            rows, urgent_due = rows + len(waiting), math.inf
            waiting.clear()
            urgent.clear()
        shard = random.randrange(8)
        waiting.setdefault(shard, now)
        if random.random() < failures / ends:
            urgent.add(shard)
            urgent_due = min(urgent_due, now + 0.01)
    assert journal_rows_per_s(load, STORE) == pytest.approx(rows / 1_800, rel=0.15)


def test_more_workers_idle_more_and_are_less_busy_each() -> None:
    found = of(workers=100)
    assert found.workers_cpu_cores == pytest.approx(100 * 0.01 + 100 * 4_000e-6)
    assert found.connections == 625


def test_what_is_kept_of_the_log_is_what_comes_in_the_time() -> None:
    found = of(retention_s=2 * DAY_S)
    assert found.log_bytes_kept == pytest.approx(2 * (found.log_bytes_per_day or 0))
    assert of().log_bytes_kept == 300 * 100 * PRUNE_S


@pytest.mark.parametrize(
    ("rate", "an_hour"), [(0.001, 0.45), (0.01, 1), (1, 1), (100, None), (1_000, 60)]
)
def test_of_the_journal_sums_are_kept_after_an_hour(rate: float, an_hour: float | None) -> None:
    """`an_hour`: rows of a shard in each hour of the first day."""
    rows_per_hour = journal_rows_per_s(Load(rate=rate), STORE) * 3_600
    if an_hour is None:
        an_hour = rows_per_hour / 8 / SUM_ROWS
        assert 1 < an_hour < 60

    def rows(days: float) -> float:
        return (of(rate=rate, journal_s=days * DAY_S).journal_bytes_kept or 0) / 300

    assert rows(1 / 48) == pytest.approx(rows_per_hour / 2)
    assert rows(1 / 24) == pytest.approx(rows_per_hour)
    assert rows(1) - rows(1 / 24) == pytest.approx(23 * 8 * an_hour, rel=0.1)
    assert rows(7) - rows(1) == pytest.approx(6 * 24 * 8 * min(an_hour, 1), rel=0.1)


def test_ages_and_numbers_are_those_of_the_compaction() -> None:
    assert (DETAIL_S, MINUTES_S) == (JOURNAL_DETAIL_S, JOURNAL_MINUTE_S)
    assert SUM_ROWS == ROW_MIN


def test_between_two_rates_logarithms_are_interpolated() -> None:
    middle = of(rate=10).workers_cpu_cores
    assert middle == pytest.approx(0.01 + 10 * 2_000e-6)


SPANNER = StoreFigures(
    measured="2026",
    loop_ms=3.5,
    shards=8,
    payload_bytes=120,
    rates=(
        RateFigures(rate=1, journal_rows=1, reads=40.0, commits=1.0, mutations=20.0),
        RateFigures(rate=10, journal_rows=1, reads=20.0, commits=1.0, mutations=20.0),
    ),
    idle_reads_per_s=9.0,
    idle_commits_per_s=2.0,
    idle_mutations_per_s=16.0,
)


def test_spanners_operations_are_those_of_workers_and_producers() -> None:
    found = estimate(Load(rate=1, workers=1), SPANNER)
    assert found.spanner_reads_per_day == pytest.approx((9 + 40) * DAY_S)
    assert found.spanner_commits_per_day == pytest.approx((2 + 1 + 1) * DAY_S)
    assert found.spanner_mutations_per_day == pytest.approx((16 + 20 + 8) * DAY_S)
    for name in ("wal_workers_bytes_per_day", "log_bytes_per_day", "connections"):
        assert getattr(found, name) is None, name


def test_beyond_the_last_rate_of_the_emulator_reads_get_fewer_per_task() -> None:
    found = estimate(Load(rate=100), SPANNER)
    assert found.spanner_reads_per_day == pytest.approx((9 + 100 * 10) * DAY_S)
    # What one commit writes does not shrink.
    assert found.spanner_mutations_per_day == pytest.approx((16 + 100 * 28) * DAY_S)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": 0.0}, r"rate=0.0: expected 0.001 to 100,000"),
        ({"rate": -1.0}, "rate=-1.0"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"rate": float("inf")}, "rate=inf"),
        ({"rate": 1, "payload": 2**40}, "payload=.*expected 1 to 1,048,576"),
        ({"rate": 1, "delayed": 1.5}, "delayed=1.5: expected 0 to 1"),
        ({"rate": 1, "retries": -0.1}, "retries=-0.1"),
        ({"rate": 1, "groups": 0}, "groups=0"),
        ({"rate": 1, "workers": 10**9}, "workers="),
        ({"rate": 1, "shards": 5_000}, "shards=5000: expected 1 to 4,096"),
        ({"rate": 1, "journal_s": -5.0}, "journal_s"),
    ],
)
def test_what_no_load_can_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Load(**wrong)


@pytest.mark.parametrize("store", sorted(FIGURES))
def test_the_kept_figures_answer_for_any_load(store: str) -> None:
    for rate in (0.001, 1, 77, 100_000):
        found = estimate(
            Load(rate=rate, workers=3, groups=2, delayed=0.3, retries=1), FIGURES[store]
        )
        values = [v for v in msgspec.structs.asdict(found).values() if v is not None]
        assert values
        assert all(0 <= value < 1e18 for value in values)


def test_the_kept_figures_are_as_their_writer_writes_them() -> None:
    assert size_figures.FILE.read_text() == size_figures.formatted(size_figures.source(FIGURES))


def test_the_writer_reads_back_what_it_writes(tmp_path: Any) -> None:
    file = tmp_path / "written.py"
    file.write_text(size_figures.source({"postgresql": STORE}))
    check_it = (
        "import runpy, sys; print(runpy.run_path(sys.argv[1])['FIGURES']['postgresql'].loop_ms)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check_it, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "3.5\n"


def run(rate: float, **changes: Any) -> dict[str, Any]:
    """A run of `bench.steady` on a worker that idles at 1 % and then takes 1 ms a task."""
    tasks, window_s = round(rate * 20), 25.0
    found = {
        "rate": rate, "reached_per_s": rate, "task": "stamp", "note_bytes": 100,
        "delayed": 0.0, "retried": 0.0, "workers": 1,
        "loop_ms": 3.5, "tasks": tasks, "window_s": window_s,
        "journal_rows_per_task": rows_at(rate), "journal_bytes_per_row": 300.0,
        "log_bytes_per_task": 300.0, "wal_producer_per_task": 500.0,
        "wal_worker_per_task": 400.0 + 200.0 * window_s / tasks,
        "worker_cpu_us": 1_000.0 + 0.01 * window_s / tasks * 1e6,
        "server_cpu_us": 500.0 + 0.002 * window_s / tasks * 1e6,
    }  # fmt: skip
    return found | changes


IDLE = {
    "workers": 4, "workers_cpu_percent": 4.0, "server_cpu_percent": 1.8,
    "server_alone_cpu_percent": 1.0, "wal_per_s": 800.0, "connections": 25, "loop_ms": 3.5,
}  # fmt: skip
REPORT: dict[str, Any] = {
    "at": "2026-11-25T00:00:00Z",
    "machine": {"cpu": "AMD"},
    "places": [
        {
            "store": "PostgreSQL", "name": "late", "versions": "PostgreSQL 15 (fsync=on)",
            "idle": [IDLE], "steady": [run(1_000), run(100), run(100, task="update")],
            "shapes": [run(100, delayed=1.0, wal_worker_per_task=1_300.0 + 200.0 * 25 / 2_000)],
        },
        {"store": "PostgreSQL", "name": "pg-boss", "versions": "", "steady": [run(1)]},
    ],
}  # fmt: skip


def test_constants_are_what_a_task_costs_beyond_an_idle_worker() -> None:
    (store,) = fit(REPORT).values()
    assert store.measured == "2026-11-25, AMD, PostgreSQL 15"
    assert [one.rate for one in store.rates] == [100, 1_000]
    for one in store.rates:
        assert one.worker_wal_bytes == pytest.approx(400)
        assert one.worker_cpu_us == pytest.approx(1_000)
        assert one.server_cpu_us == pytest.approx(500)
    assert store.idle_worker_cpu == pytest.approx(0.01)
    assert store.idle_server_cpu == pytest.approx(0.002)
    assert store.connections == 6.25
    assert store.delayed is not None
    assert store.delayed.worker_wal_bytes == pytest.approx(900)
    assert store.retried is None


def test_constants_are_at_one_speed_though_the_runs_were_not() -> None:
    slow = run(1_000, loop_ms=7.0)
    slow |= {name: 2 * slow[name] for name in ("worker_cpu_us", "server_cpu_us")}
    place = REPORT["places"][0] | {"steady": [run(10), run(100), slow], "shapes": []}
    (store,) = fit(REPORT | {"places": [place]}).values()
    assert store.loop_ms == 3.5
    assert [one.worker_cpu_us for one in store.rates] == pytest.approx([1_000] * 3)


def test_another_run_brings_bytes_and_rows_and_no_times() -> None:
    more = {
        "journal_rows_per_task": 0.25,
        "journal_bytes_per_row": 480.0,
        "log_bytes_per_task": 310.0,
    }
    slow = {"worker_cpu_us": 9_000.0, "server_cpu_us": 9_000.0}
    place = REPORT["places"][0] | {"steady": [run(99, **more, **slow)], "shapes": []}
    (times,) = fit(REPORT).values()
    (longer,) = fit(REPORT | {"at": "2026-11-27T00:00:00Z", "places": [place]}).values()
    found = with_bytes(times, longer)
    assert found.measured == "2026-11-25, AMD, PostgreSQL 15; bytes 2026-11-27"
    assert found.log_task_bytes == 310.0
    at_100, at_1000 = found.rates
    assert (at_100.journal_rows, at_100.journal_row_bytes) == (0.25, 480.0)
    assert at_1000 == times.rates[1], "that rate was not measured again"
    assert found.delayed == times.delayed
    for one, time in zip(found.rates, times.rates, strict=True):
        assert (one.rate, one.worker_cpu_us, one.server_cpu_us) == (
            time.rate,
            time.worker_cpu_us,
            time.server_cpu_us,
        )


def test_a_figure_that_a_short_run_lacks_stays_as_it_was() -> None:
    (before,) = fit(REPORT).values()
    short = [run(100) | {"journal_bytes_per_row": None, "worker_cpu_us": 900.0}]
    place = REPORT["places"][0] | {"steady": short, "shapes": []}
    (found,) = fit(REPORT | {"places": [place]}).values()
    assert found.rates[0].journal_row_bytes is None
    full = filled(found, before)
    assert full.rates[0].journal_row_bytes == before.rates[0].journal_row_bytes == 300.0
    assert full.rates[0].worker_cpu_us == found.rates[0].worker_cpu_us
    assert full.delayed == before.delayed


@pytest.mark.parametrize("store", ["postgresql", "sqlite"])
def test_the_kept_figures_have_the_bytes_of_the_journal(store: str) -> None:
    found = estimate(Load(rate=100), FIGURES[store])
    longer = estimate(Load(rate=100, journal_s=365 * 86_400), FIGURES[store])
    assert found.journal_bytes_per_day
    assert found.journal_bytes_kept is not None
    assert longer.journal_bytes_kept is not None
    assert longer.journal_bytes_kept > found.journal_bytes_kept > 0


def test_a_run_that_is_as_its_constants_say_passes_the_check() -> None:
    (figures,) = fit(REPORT).values()
    found = list(check.compare(figures, run(300), "PostgreSQL"))
    assert [one.what for one in found if not one.good] == []
    assert len(found) == 7
    # Given a processor of half the speed, its times are twice as long and as they should be.
    slow = run(300, loop_ms=7.0)
    slow |= {name: 2 * slow[name] for name in ("worker_cpu_us", "server_cpu_us")}
    assert all(one.good for one in check.compare(figures, slow, "PostgreSQL"))


def test_a_quantity_that_is_a_third_off_fails_the_check() -> None:
    (figures,) = fit(REPORT).values()
    found = list(check.compare(figures, run(300, log_bytes_per_task=450.0), "PostgreSQL"))
    assert [one.what for one in found if not one.good] == ["log, bytes"]
    assert "| **no** |" in check.text(found)
