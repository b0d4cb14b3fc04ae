"""The figures in `docs/proof.md` are those of `docs/figures`, and those are whole."""

from __future__ import annotations

from scripts import proof
from tests.defects.registry import DEFECTS
from tests.drills.incidents import DRILLS

READ = proof.read()


def test_the_page_shows_the_last_results() -> None:
    text = proof.PAGE.read_text()
    assert text == proof.page(text, READ), "run: python -m scripts.proof"


def test_every_seeded_defect_that_the_page_shows_was_caught() -> None:
    rows = {row["defect"]: row for row in READ["defects"]["defects"]}
    assert rows.keys() <= DEFECTS.keys(), "run: make defects ARGS=--save"
    assert len(rows) >= 16
    assert all(row["caught"] for row in rows.values())
    assert all(DEFECTS[name].what == row["what"] for name, row in rows.items())


def test_no_world_of_the_last_soak_broke() -> None:
    assert READ["soak"]["broke"] == []
    assert READ["soak"]["worlds"] > 0


def test_each_drill_that_the_page_shows_was_named_by_all() -> None:
    kept = READ["drills"]
    assert kept
    assert kept.keys() <= {drill.name for drill in DRILLS}, "run: make drills ARGS=--save"
    assert all(None not in found["said"].values() for found in kept.values())


def test_no_storm_of_the_full_size_broke_a_promise() -> None:
    storms = READ["chaos"]
    assert storms
    assert not [name for name, found in storms.items() if found.get("broken")]
