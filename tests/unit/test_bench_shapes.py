"""The bench of shapes: its order, its ratios, what it writes and enqueues, without a database."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import measure
from bench.peers import roster
from bench.peers.adapters import mix
from bench.shapes import __main__ as program
from bench.shapes import beside, drains, pairs, table
from bench.shapes.tasks import SHAPES
from scripts import performance_doc


def turn(per_s: float, **more: float) -> dict[str, Any]:
    return {"tasks": 1_000, "per_s": per_s, "worker_us": 5.0, "loop_ms": 3.0, "load": 0.1} | more


def test_the_plain_shape_stands_between_any_two_and_every_other_turn_runs_backwards() -> None:
    names = ["plain", "mix", "two"]
    assert pairs.chain(names, 0) == ["plain", "mix", "plain", "two", "plain"]
    assert pairs.chain(names, 1) == ["plain", "two", "plain", "mix", "plain"]


def test_a_ratio_is_to_the_plain_drains_right_before_and_after() -> None:
    names = ["plain", "mix", "plain", "two", "plain"]
    chain = [turn(80), turn(50, worker_us=20.0), turn(120), turn(300), turn(80)]
    found = pairs.paired(names, chain)
    assert [each["of_plain"] for each in found["mix"] + found["two"]] == [0.5, 3.0]
    assert found["mix"][0]["cpu_of_plain"] == 4.0
    assert [each["of_plain"] for each in found["plain"]] == [1, 1, 1]


def test_a_drain_that_gave_up_leaves_the_ratios_of_the_others() -> None:
    names = ["plain", "mix", "plain", "two", "plain"]
    found = pairs.paired(names, [turn(80), None, None, turn(60), turn(120)])
    assert "mix" not in found
    assert found["two"][0]["of_plain"] == 0.5
    alone = pairs.paired(names, [None, turn(80), None, None, None])
    assert "of_plain" not in alone["mix"][0]


def test_giving_up_is_said_in_the_report_and_stops_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_target: Any, _folder: Path, name: str, *_: Any) -> dict[str, Any]:
        if name == "mix":
            raise measure.GaveUp("3 of 9 settled\nand nothing moves")
        return turn(100)

    monkeypatch.setattr(drains, "run", run)
    target: Any = SimpleNamespace(name="sqlite", clear=lambda: None)
    options = argparse.Namespace(turns=2, shapes=["mix", "two"], count=9, rest=0.0)
    report: dict[str, Any] = {"gave_up": []}
    program.own([target], options, report, lambda _what: None)
    assert len(report["stores"]["sqlite"]["two"]["turns"]) == 2
    assert [(one["shape"], one["turn"]) for one in report["gave_up"]] == [("mix", 1), ("mix", 2)]
    assert "Not measured: sqlite, mix, turn 2: 3 of 9 settled\n" in table.text(report)


def test_threads_that_start_at_once_count_as_one_start() -> None:
    found = drains.Marks.parse(["first 5000000000 300000000", "first 4000000000 200000000", "7 6"])
    assert (found.first_s, found.used_s, found.started) == (4.0, 0.2, {7: 6e-9})


def test_a_worker_without_a_task_has_taken_nothing_before_its_first() -> None:
    idle = drains.Marks.parse([])
    assert min(idle, drains.Marks(2.0, 0.1, {}), key=lambda mark: mark.first_s).first_s == 2.0
    assert idle.used_s == 0


def test_lateness_is_from_when_a_task_was_due() -> None:
    started = {n: 10.0 + n for n in range(101)}
    marks = [drains.Marks(0, 0, started), drains.Marks(0, 0, {})]
    found = drains.lateness(marks, dict.fromkeys(started, 10.0))
    assert found == {"late_p50_ms": 50_000, "late_p99_ms": 100_000}
    assert drains.lateness([drains.Marks(0, 0, {})], {}) == {}


def test_medians_stand_with_the_range_of_their_ratio() -> None:
    turns = [turn(90, of_plain=0.9), turn(100, of_plain=1.0), turn(500, of_plain=1.25)]
    report = {
        "stores": {
            "sqlite": {
                "two": {"title": "two", "turns": turns},
                "mix": {"title": "mix", "turns": [turn(25, late_p50_ms=1.0, late_p99_ms=9.0)]},
            }
        }
    }
    lines = table.text(report).splitlines()
    assert lines[2] == "| two | 1,000 | 100 | 1.00, 0.90 – 1.25 | 5.0 | – | – | – | 3.00 | – |"
    assert lines[3] == "| mix | 1,000 | 25 | – | 5.0 | – | – | – | 3.00 | 1.0 / 9.0 |"


def test_a_peer_stands_beside_late_and_its_mix_by_itself() -> None:
    def both(ratio: float, **more: float) -> dict[str, Any]:
        return {"late": turn(100, **more), "peer": turn(50, **more), "ratio": ratio}

    shapes = {
        "plain": {"title": "plain", "turns": [both(2.0), both(3.0), both(2.5)]},
        "mix": {"title": "the mix", "turns": [both(2.0, late_p50_ms=1.0, late_p99_ms=9.0)]},
    }
    text = table.text({"peers": {"other": {"title": "Other", "shapes": shapes}}})
    assert "| plain | 1,000 / 1,000 | 100 | 50 | 2.50, 2.00 – 3.00 | 5.0 | 5.0 | – | – |" in text
    assert "| Other | 1,000 | 50 | 5.0 | – | 1.0 / 9.0 |" in text
    assert "| the mix |" not in text


def test_late_and_a_peer_take_turns_and_slow_ones_have_fewer_tasks() -> None:
    assert [beside.order(number)[0] for number in range(3)] == ["late", "peer", "late"]
    known = roster.read()
    once = beside.CONTESTS["once"]
    assert beside.tasks(100_000, once, known["late"]) == 10_000
    assert beside.tasks(100_000, once, known["oban"]) == 1_000
    assert set(beside.PEERS) <= set(known)
    for contest in beside.CONTESTS.values():
        for name in ("late", *contest.peers):
            text = known[name].program.read_text()
            assert (contest.ours if name == "late" else contest.theirs) in text


def test_what_fails_and_what_is_delayed_in_the_mix_meets_every_key() -> None:
    numbers = range(100_000)
    failing = [n for n in numbers if mix.fails_first(n)]
    assert len(failing) / len(numbers) == pytest.approx(1 / mix.RETRIED, rel=0.02)
    keys = {mix.mixed(n).key for n in failing} - {None}
    assert len(keys) == mix.KEYS
    delays = [mix.mixed(n).delay_s for n in numbers if mix.is_delayed(n)]
    assert (min(delays), max(delays)) == (1.0, 5.0)


def test_every_shape_makes_a_call_and_delays_begin_when_told() -> None:
    for shape in SHAPES.values():
        for n in range(20):
            shape.call(n)
    assert SHAPES["mix"].options(10)["delay"] == mix.delay_s(10)


def recorded() -> dict[str, Any]:
    one = {"title": "plain", "turns": [turn(90, load=2.5), turn(110, load=0.5)]}
    shapes = {name: one | {"title": name} for name in table.ORDINARY}
    machine = {"cpu": "Some CPU", "cores": 2, "python": "3.11.7", "load_before": [0.4, 0, 0]}
    told = {"at": "2026-01-02T03:04:05Z", "machine": machine, "versions": ["SQLite 3"]}
    told |= {"count": 1_000, "turns": 3, "load_after": 1.5, "note": "Others ran."}
    return {"conditions": {"stores": told}, "stores": {"sqlite": shapes}}


def test_conditions_tell_what_else_the_machine_did() -> None:
    assert "before: 0.4, before a drain 0.5 to 2.5, after: 1.5. Others ran.\n" in table.text(
        recorded()
    )


def test_the_readme_never_shows_the_plain_shape_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps(recorded()))
    monkeypatch.setattr(performance_doc, "SHAPES", file)
    made = performance_doc.readme("a\n<!-- shapes -->\nold\n<!-- end of shapes -->\nb\n")
    assert made.startswith("a\n<!-- shapes -->\n|")
    assert made.endswith("<!-- end of shapes -->\nb\n")
    assert "| plain | 100 | 5 |\n| mix | 100 | 5 |\n| once | 100 | 5 |\n" in made
    assert "## Shapes of tasks" in performance_doc.page()


def test_the_table_of_the_readme_is_what_its_source_says() -> None:
    text = performance_doc.README.read_text()
    assert text == performance_doc.readme(text), "run: python -m scripts.performance_doc"
