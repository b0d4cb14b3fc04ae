"""The example of a move from Celery: both systems, a worker killed on either side, one judge."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from queue import Empty
from types import ModuleType
from typing import Any

import kombu
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "celery-migration"
PHASE_OF = dict.fromkeys(range(1, 5), 0)


def module_of(name: str) -> ModuleType:
    """Return a module of the example."""
    spec = importlib.util.spec_from_file_location(f"celery_migration_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return module_of("run")


@pytest.mark.timeout(1_200)
def test_each_call_runs_on_one_side_and_none_is_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        ["./run", "--watch"],
        cwd=FOLDER,
        env={**os.environ, "CALLS": "40", "TMPDIR": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    logs = [path.read_text()[-2_000:] for path in tmp_path.glob("*/*.log")]
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    assert "calls 216, on both sides 0, lost 0, rolled back and run 0" in done.stdout
    canvases = dict(re.findall(r"^canvases on (\S+): (\d+)$", done.stdout, re.M))
    assert canvases.keys() == {"celery", "late"}
    assert sum(map(int, canvases.values())) == 12
    rows = re.findall(r"^ +(\d+)%  late +(\d+)  celery +(\d+)$", done.stdout, re.M)
    sides = [(int(percent), int(late), int(celery)) for percent, late, celery in rows]
    assert [percent for percent, _, _ in sides] == [0, 1, 50, 100, 50, 0]
    assert all(late + celery == 36 for _, late, celery in sides)
    by_share = {percent: (late, celery) for percent, late, celery in sides}
    assert (by_share[0], by_share[100]) == ((0, 36), (36, 0))
    assert min(by_share[50]) > 0


def test_no_worker_takes_a_message_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = dict.fromkeys(("data_folder_in", "data_folder_out"), str(tmp_path / "box"))
    (tmp_path / "box").mkdir()
    options = {**folders, "control_folder": str(tmp_path / "control")}
    early: list[object] = []

    def looked(step: str, doing: Any) -> Any:
        def done(*arguments: Any) -> Any:
            with contextlib.suppress(Empty):
                early.append((step, reader._get("celery")))
            return doing(*arguments)

        return done

    broker = module_of("broker")
    with kombu.Connection("filesystem://", transport_options=options) as connection:
        writer, reader = (broker.Channel(connection.transport) for _ in range(2))
        for step in ("write_text", "rename"):
            monkeypatch.setattr(Path, step, looked(step, getattr(Path, step)))
        writer._put("celery", {"n": 1})
        assert early == []
        assert reader._get("celery") == {"n": 1}
        assert list((tmp_path / "box").iterdir()) == []


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({1: ["late"], 2: ["celery"], 3: ["late", "late"]}, 0),
        ({1: ["late"], 2: ["celery"], 3: ["late", "celery"]}, 1),
        ({1: ["late"], 2: ["celery"], 3: ["celery+late"]}, 1),
        ({1: ["late"], 2: ["celery"], 3: ["wrong"]}, 1),
        ({1: ["late"], 2: ["celery"]}, 1),
        ({1: ["late"], 2: ["celery"], 3: ["late"], 4: ["late"]}, 1),
    ],
    ids=[
        "kept",
        "on both sides",
        "parts on both sides",
        "wrong sum",
        "lost",
        "rolled back and run",
    ],
)
def test_the_judge_sees_what_is_wrong(
    example: ModuleType, found: dict[int, list[str]], verdict: int
) -> None:
    assert example.judge(found, {1, 2, 3}, PHASE_OF) == verdict
