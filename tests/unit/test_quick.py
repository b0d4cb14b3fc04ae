"""The tests that a change touches, and duplicates: `scripts/quick.py`, `check_duplicates.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_duplicates, quick


def test_the_nearest_tests_come_first_and_unit_tests_before_others() -> None:
    tests = {
        "tests/integration/test_a.py": {"late.model.task"},
        "tests/integration/test_changed.py": set(),
        "tests/unit/test_a.py": {"late.model.task"},
        "tests/unit/test_around.py": {"late.app.app"},
        "tests/unit/test_far.py": {"late.cron"},
    }
    changed = ["late/model/task.py", "tests/integration/test_changed.py"]
    importers = {"late.model.task": {"late.app.app"}}
    assert quick.choose(changed, tests, importers) == [
        "tests/integration/test_changed.py",
        "tests/unit/test_a.py",
        "tests/integration/test_a.py",
        "tests/unit/test_around.py",
    ]


def test_imports_are_found_at_any_place() -> None:
    text = "import late.errors\ndef f():\n    from late.model import task\n"
    assert quick.imported(text) == {"late.errors", "late.model", "late.model.task"}
    assert quick.module_of("spark/late_spark/cost.py") == "late_spark.cost"
    assert quick.module_of("late/app/__init__.py") == "late.app"


def test_a_run_of_equal_lines_is_a_duplicate_and_imports_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_duplicates, "MOST", 0)
    imports = "".join(f"import m{n}\n" for n in range(20))
    code = "".join(f"    x{n} = {n}\n" for n in range(check_duplicates.RUN))
    room = tmp_path / "late"
    room.mkdir()
    (room / "a.py").write_text(f"{imports}def a():\n{code}")
    (room / "b.py").write_text(f"{imports}# another\ndef b():\n\n{code}    return 1\n")
    assert check_duplicates.main([], tmp_path) == 1
    assert f"{2 * check_duplicates.RUN} lines" in capsys.readouterr().out
    (room / "b.py").write_text(f"{imports}def b():\n{code.replace('x5', 'y')}")
    assert check_duplicates.main([], tmp_path) == 0
