"""`docs/stores.md` is what its sources say, and says what was not run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from scripts import stores_doc
from tests import results
from tests.conformance.backends import BACKENDS


def test_the_page_is_made_from_features_and_results() -> None:
    assert stores_doc.PAGE.read_text() == stores_doc.page(), "run: python scripts/stores_doc.py"


def test_every_store_of_the_suite_is_on_the_page() -> None:
    assert {words.results for words in stores_doc.STORES} == {b.name for b in BACKENDS}
    kept = {path.stem for path in stores_doc.RESULTS.glob("*.json")}
    assert kept <= {b.name for b in BACKENDS} | {"servers"}


def test_what_is_kept_of_the_versions_is_of_runs_without_a_failure() -> None:
    kept = json.loads((stores_doc.RESULTS / "servers.json").read_text())
    assert list(kept) == ["13", "14", "15", "16", "17", "18", "pgbouncer"]
    for found in kept.values():
        assert found["failed"] == 0
        assert found["passed"] > 100


def test_kept_results_are_those_of_runs_without_a_failure() -> None:
    for words in stores_doc.STORES:
        kept = stores_doc.results_of(words)
        if stores_doc.features_of(words).experimental:
            assert kept is None, "it has run: look at what is called experimental"
        else:
            assert kept is not None
            assert kept["failed"] == 0
            assert kept["passed"] > 50


def test_a_store_without_results_was_not_run(tmp_path: Path) -> None:
    page = stores_doc.page(tmp_path)

    assert page.count("**not run**") == len(stores_doc.STORES)
    assert "**the real service: not run.**" in page


def test_a_run_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    outcomes = ["passed"] * 4 + ["failed", "this database has no savepoints"]
    results.write("sqlite", "SQLite 3.99", Counter(outcomes))
    results.write("cockroach", "v99", Counter(outcomes), {"insert": 10, "select": 20})

    kept = json.loads((tmp_path / "sqlite.json").read_text())
    assert (kept["passed"], kept["failed"]) == (4, 1)
    assert kept["skipped"] == {"this database has no savepoints": 1}
    assert "statements" not in kept
    said = "CockroachDB: 1,000 tasks were read and settled by 10 insert, 20 select statements."
    assert said in stores_doc.page(tmp_path)
    assert said not in stores_doc.page()
    cells = stores_doc.ran(kept)
    assert cells["ran on"] == "SQLite 3.99"
    assert cells["skipped"] == "1: this database has no savepoints"
