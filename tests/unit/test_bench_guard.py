"""The guard over the path of a task: what it reads of the counters, and what it refuses."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench import guard, path
from bench.path_tasks import SHAPES

PERF = "20000 tasks\n85625123,,instructions:u,1000,100.00,,\n"
VALGRIND = "==7== Events    : Ir\n==7== I   refs:      1,737,348,205\n"


def test_both_counters_are_read() -> None:
    assert guard.parse(PERF) == 85_625_123
    assert guard.parse(VALGRIND) == 1_737_348_205
    assert guard.parse("<not supported>,,instructions:u,0,100.00,,\n") is None


@pytest.mark.parametrize(
    ("found", "here", "fine", "said"),
    [
        (110_000, "CPython 3.11", True, "+10.0%"),
        (110_001, "CPython 3.11", False, "not accepted"),
        (50_000, "CPython 3.11", True, "-50.0%"),
        (50_000, "CPython 3.13", False, "compare like with like"),
    ],
)
def test_a_tenth_more_is_refused_and_so_is_another_python(
    found: int, here: str, fine: bool, said: str
) -> None:
    kept: dict[str, object] = {"instructions_per_task": 100_000, "build": "CPython 3.11"}
    judged, text = guard.judge(found, kept, here)
    assert judged is fine
    assert said in text


@pytest.mark.parametrize(
    ("having", "fine"), [(100_000, True), (104_999, True), (105_000, False), (200_000, False)]
)
def test_metrics_may_take_less_than_a_twentieth(
    having: int, fine: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {(): 100_000, ("--metrics",): having}
    monkeypatch.setattr(guard, "per_task", lambda *more: (counts[more], "perf"))
    assert guard.main(["--metrics"]) == (0 if fine else 1)
    said = capsys.readouterr()
    assert f"{having / 100_000 - 1:+.2%}" in (said.out if fine else said.err)


def test_without_a_counter_nothing_is_measured_and_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard.shutil, "which", lambda name: None)
    assert guard.main([]) == 2
    assert "neither perf nor valgrind" in capsys.readouterr().err


def test_a_shape_is_judged_beside_the_plain_task_of_its_own_run() -> None:
    kept: dict[str, object] = {"shapes": {"plain": 100_000, "priority": 110_000}}
    fine, said = guard.judge_shapes({"plain": 50_000, "priority": 60_499}, kept)
    assert fine
    assert "| 60,499 | 1.21 | 1.10 |" in said
    fine, said = guard.judge_shapes({"plain": 50_000, "priority": 60_501}, kept)
    assert not fine
    assert "1.21 (too many)" in said


def test_every_shape_has_a_kept_count() -> None:
    assert json.loads(guard.KEPT.read_text())["shapes"].keys() == SHAPES.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_the_path_runs_and_settles_every_task(name: str) -> None:
    shape = SHAPES[name]

    async def run() -> None:
        shelf = path.Shelf(shape.rows(3_000))
        await path.drain(shelf, shape.app)
        assert shelf.empty.is_set()
        assert shelf.left == 0

    asyncio.run(asyncio.wait_for(run(), 120))
