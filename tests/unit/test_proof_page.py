"""The figures in `docs/proof.md` are those of `docs/results`, and those are whole."""

from __future__ import annotations

import json

from scripts import proof
from tests.defects.registry import DEFECTS

READ = {
    name: json.loads((proof.RESULTS / f"{name}.json").read_text()) for name in ("defects", "soak")
}


def test_the_page_shows_the_last_results() -> None:
    text = proof.PAGE.read_text()
    assert text == proof.page(text, **READ), "run: python scripts/proof.py"


def test_every_seeded_defect_that_the_page_shows_was_caught() -> None:
    rows = {row["defect"]: row for row in READ["defects"]["defects"]}
    assert rows.keys() <= DEFECTS.keys(), "run: make defects ARGS=--save"
    assert len(rows) >= 16
    assert all(row["caught"] for row in rows.values())
    assert all(DEFECTS[name].what == row["what"] for name, row in rows.items())


def test_no_world_of_the_last_soak_broke() -> None:
    assert READ["soak"]["broke"] == []
    assert READ["soak"]["worlds"] > 0
