"""The bench of shapes: what it writes and what it enqueues, without a database."""

from __future__ import annotations

from typing import Any

from bench.shapes import table
from bench.shapes.tasks import DELAYED, SHAPES, delay_s


def turn(per_s: float, **more: float) -> dict[str, Any]:
    return {"tasks": 1_000, "per_s": per_s, "worker_us": 5.0, "loop_ms": 3.0, "load": 0.1} | more


def test_medians_stand_beside_the_plain_shape_of_the_same_run() -> None:
    report = {
        "stores": {
            "sqlite": {
                "plain": {"title": "plain", "turns": [turn(90), turn(100), turn(500)]},
                "mix": {"title": "mix", "turns": [turn(25, late_p50_ms=1.0, late_p99_ms=9.0)]},
            }
        }
    }
    lines = table.text(report).splitlines()
    assert lines[2] == "| plain | 1,000 | 100 | 1.00 | 5.0 | 3.00 | – |"
    assert lines[3] == "| mix | 1,000 | – | – | 5.0 | 3.00 | 1.0 / 9.0 |"


def test_a_run_without_the_plain_shape_has_no_ratio() -> None:
    assert table.body({"mix": {"title": "mix", "turns": [turn(25)]}})[0][3] == "–"


def test_delays_of_the_mix_are_one_to_five_seconds() -> None:
    delays = [delay_s(n) for n in range(0, 1_000, DELAYED)]
    assert (min(delays), max(delays)) == (1.0, 5.0)


def test_every_shape_makes_a_call() -> None:
    for shape in SHAPES.values():
        for n in range(20):
            shape.call(n)
