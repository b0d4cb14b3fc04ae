"""What `make test` leaves out, and what a budget of processor time pays for: `tests/sizes.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import sizes

TESTS = Path(sizes.__file__).parent


def test_each_name_is_one_function_and_each_pattern_a_file() -> None:
    text = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    found = re.findall(r"^(?:async )?def (test_\w+)\(", text, re.M)
    assert [name for name in sizes.LONG if found.count(name) != 1] == []
    assert [pattern for pattern in sizes.QUIET if not list(TESTS.glob(f"{pattern}.py"))] == []


def test_what_is_long_on_one_store_is_not_on_another() -> None:
    for name, parts in sizes.LONG.items():
        stores = [part for part in parts if part in sizes.STORES]
        assert len(stores) < len(sizes.STORES), name
        if stores:
            assert not all(sizes.is_long(name, store) for store in sizes.STORES)
    assert sizes.is_long("test_a_reset_to_now", "spanner")
    assert not sizes.is_long("test_a_reset_to_now", "postgres")


def test_a_spent_budget_lets_cases_pass_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LONG_RUN", False)
    seen = []
    limited = sizes.Budget(0.0, floor=3).limit(lambda n: seen.append(n))
    for n in range(9):
        limited(n=n)
    assert seen == [0, 1, 2]


def test_a_long_run_and_a_failure_end_the_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LONG_RUN", False)
    seen = []

    def fails(n: int) -> None:
        seen.append(n)
        assert n != 1

    limited = sizes.Budget(0.0, floor=2).limit(fails)
    limited(n=0)
    with pytest.raises(AssertionError):
        limited(n=1)
    limited(n=2)
    assert seen == [0, 1, 2]
    monkeypatch.setattr(sizes, "LONG_RUN", True)
    assert not sizes.Budget(0.0, floor=0).is_spent()


def test_a_run_imports_the_files_of_its_own_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(TESTS.rglob("test_*.py"))
    imported = []
    for group in ("quiet", "shared", "others"):
        monkeypatch.setattr(sizes, "GROUP", group)
        imported += [path for path in files if sizes.pytest_ignore_collect(path) is None]
    assert sorted(imported) == files
    assert sizes.pytest_ignore_collect(TESTS / "conftest.py") is None
    assert sizes.pytest_ignore_collect(TESTS / "spark") is True
    assert sizes.pytest_ignore_collect(TESTS / "integration") is None


def test_a_run_of_long_tests_imports_no_file_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "ONLY_LONG", True)
    monkeypatch.setattr(sizes, "GROUP", "")  # The group of this very run is none of it.
    files = [path for path in TESTS.rglob("test_*.py") if sizes.pytest_ignore_collect(path) is None]
    text = "\n".join(path.read_text() for path in files)
    assert [name for name in sizes.LONG if f"def {name}(" not in text] == []
    assert Path(__file__) not in files
