"""The picture of the rooms: made from the imports as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import architecture


def test_the_picture_shows_the_imports_as_they_are() -> None:
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.fresh(), (
        "run: python scripts/architecture.py"
    )


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "ground.py": "import os, late.high.never as never\n",
        "low/__init__.py": "",
        "low/a.py": "from late import ground\nfrom late.low import b\n",
        "high/__init__.py": "from late.low.a import x\n",
        "high/c.py": "def f():\n    import late.ground\n",
    }
    for name, text in files.items():
        path = tmp_path / "late" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert architecture.imports(tmp_path / "late") == {
        ("low", "ground"), ("high", "low"), ("high", "ground"), ("ground", "high"),
    }  # fmt: skip


def test_what_follows_from_other_arrows_is_left_out() -> None:
    edges = frozenset({("a", "b"), ("b", "c"), ("c", "d"), ("a", "c"), ("a", "d"), ("e", "d")})
    assert architecture.reduced(edges) == {("a", "b"), ("b", "c"), ("c", "d"), ("e", "d")}


def test_a_room_that_the_picture_does_not_know_is_refused() -> None:
    rows = [[name] for name in architecture.ROOMS]
    with pytest.raises(ValueError, match="cellar"):
        architecture.picture([*rows, ["cellar"]], frozenset())


def test_a_step_of_the_life_of_a_task_names_a_room() -> None:
    assert {room for room, _, _ in architecture.LIFE} <= architecture.ROOMS.keys()
