"""The rules of the parent of several workers that need no process."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.supervisor.memory import memory_mb
from late.supervisor.metrics_page import join
from late.supervisor.processors import processors
from late.supervisor.restarts import FAILURES_MAX, REFUSED, WAIT_MAX_S, Restarts


def test_a_child_that_had_been_ready_is_replaced_at_once() -> None:
    restarts = Restarts(2, random.Random(1))
    for _ in range(100):
        assert restarts.after(-9, was_ready=True, others_ready=False) == 0.0
    assert restarts.count == 100


def test_a_crash_loop_is_given_up_after_growing_waits() -> None:
    restarts = Restarts(2, random.Random(1))
    waits = [restarts.after(1, was_ready=False, others_ready=False) for _ in range(10)]
    assert waits[-1] is None
    found = [wait for wait in waits if wait is not None]
    assert len(found) == 2 * FAILURES_MAX - 1
    assert all(0 <= wait <= WAIT_MAX_S for wait in found)
    assert max(found[5:]) > max(found[:2])


def test_a_child_that_gets_ready_ends_the_count() -> None:
    restarts = Restarts(1, random.Random(1))
    for _ in range(20):
        for _ in range(FAILURES_MAX - 1):
            assert restarts.after(1, was_ready=False, others_ready=False) is not None
        restarts.ready()


def test_children_that_work_are_not_given_up_with_one_that_fails() -> None:
    restarts = Restarts(2, random.Random(1))
    restarts.ready()
    for _ in range(100):
        assert restarts.after(1, was_ready=False, others_ready=True) is not None


def test_wrong_settings_are_not_tried_again_unless_they_were_right_before() -> None:
    assert Restarts(4, random.Random(1)).after(REFUSED, was_ready=False, others_ready=False) is None
    restarts = Restarts(4, random.Random(1))
    restarts.ready()
    assert restarts.after(REFUSED, was_ready=False, others_ready=False) is not None


def test_in_development_nothing_is_given_up() -> None:
    restarts = Restarts(1, random.Random(1), patient=True)
    for code in (REFUSED, *[1] * 50):
        assert restarts.after(code, was_ready=False, others_ready=False) is not None
    assert restarts.after(0, was_ready=True, others_ready=False) == 0.0


ONE = b"""# HELP late_a What is counted.
# TYPE late_a counter
late_a{queue="x {y}"} 1
# HELP late_b Another one.
# TYPE late_b gauge
late_b 2.5
"""
TWO = b"""# HELP late_b Another one.
# TYPE late_b gauge
late_b 3
# HELP late_c The third.
# TYPE late_c gauge
late_c{a="1",b="2"} 4
"""


def test_pages_are_joined_by_metric_and_each_series_has_its_process() -> None:
    assert join({2: TWO, 1: ONE, 3: b""}).decode().splitlines() == [
        "# HELP late_a What is counted.",
        "# TYPE late_a counter",
        'late_a{process="1",queue="x {y}"} 1',
        "# HELP late_b Another one.",
        "# TYPE late_b gauge",
        'late_b{process="1"} 2.5',
        'late_b{process="2"} 3',
        "# HELP late_c The third.",
        "# TYPE late_c gauge",
        'late_c{process="2",a="1",b="2"} 4',
    ]


@given(st.integers(1, 4))
def test_no_series_occurs_twice(count: int) -> None:
    lines = join(dict.fromkeys(range(count), ONE + TWO)).decode().splitlines()
    series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(series) == 4 * count
    assert len(set(series)) == 3 * count
    assert sum(line.startswith("# TYPE") for line in lines) == 3


@pytest.mark.parametrize(
    ("text", "most"), [("150000 100000\n", 2), ("max 100000\n", 10_000), ("20000 100000\n", 1)]
)
def test_a_containers_limit_counts(tmp_path: Path, text: str, most: int) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    assert 1 <= processors(limit) <= most
    assert processors(limit) <= processors(tmp_path / "missing")


def test_the_memory_of_a_session_is_that_of_all_its_processes(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    for pid, name, session, pages in (
        (70, "late", 70, 1000),
        (71, "a (b) c", 70, 500),
        (72, "other", 72, 9999),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        before = f"{pid} ({name}) S 1 70 {session} " + "0 " * 17
        (folder / "stat").write_text(f"{before}{pages} 18446744073709551615 1\n")
    (tmp_path / "73").mkdir()  # It has ended.
    (tmp_path / "self").mkdir()
    assert memory_mb(70, tmp_path) == 1500 * page / 1_000_000
    assert memory_mb(70, tmp_path / "missing") == 0


def test_this_process_has_memory_where_the_system_tells() -> None:
    assert (memory_mb(os.getsid(0)) > 1) == (sys.platform == "linux")
