"""The documents are true: the example runs, the links lead somewhere, made pages are fresh."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import late
from late.model.task import TRANSITIONS
from scripts import state_machine
from tests.conftest import SKIPS, objection
from tests.support import sqlite
from tests.unit.cli_kit import Cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(#[^)]*)?\)")


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_opens_with_the_two_commands() -> None:
    assert re.findall(r"^make (\w+)", readme_blocks("sh")[0], re.M) == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{name}: ## ", makefile, re.M) for name in ("demo", "test"))


def test_the_commands_that_the_readme_names_are_there(cli: Cli) -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z-]+)", text))
    assert {"demo-postgres", "demo-spanner"} <= targets
    assert targets <= set(re.findall(r"^([a-z-]+):.*##", makefile, re.M))
    used: dict[str, set[str]] = {}
    for command, option in re.findall(r"`late ([a-z]+)(?: (--[a-z]+))?", text):
        used.setdefault(command, set()).add(option)
    assert {"--store", "--url", "--trips"} <= used["demo"]
    for command, options in used.items():
        help_text = cli.fine(command, "--help").out
        assert all(option in help_text for option in options), command


def test_the_readme_example_does_what_it_says(tmp_path: Path) -> None:
    # Given the example and an empty folder
    (example,) = readme_blocks("python")
    code = [line for line in example.splitlines() if line and not line.startswith("#")]
    assert len(code) <= 15
    (tmp_path / "shop.py").write_text(example)
    # When its commands are run, as far as the worker
    sqlite.database(tmp_path / "shop.db")
    run([sys.executable, "shop.py"], tmp_path)
    # Then the order is there, and its task with it
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        assert connection.execute("select count(*) from orders").fetchone() == (1,)
        rows = connection.execute("select queue, payload from late_task").fetchall()
    connection.close()
    assert [queue for queue, _ in rows] == ["mail"]
    assert b"ada@example.org" in rows[0][1]


def test_the_readme_example_runs_its_task(tmp_path: Path) -> None:
    (example,) = readme_blocks("python")
    (tmp_path / "shop.py").write_text(example)
    commands = [line.partition("#")[0].split() for line in readme_blocks("sh")[1].splitlines()]
    (migrate_it, enqueue_it, work, *_) = commands
    assert enqueue_it == ["python", "shop.py"]
    run([sys.executable, "-m", "late.cli", *migrate_it[1:]], tmp_path)
    run([sys.executable, "shop.py"], tmp_path)
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "late.cli", *work[1:]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "receipt for order 1 to ada@example.org\n"
        finally:
            worker.terminate()
    assert worker.returncode == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    text = (ROOT / document).read_text()
    for target, _ in LINK.findall(text):
        if not target.startswith("https://"):
            assert ((ROOT / document).parent / target).exists(), target


def test_every_design_note_is_listed_and_has_its_sections() -> None:
    folder = ROOT / "docs" / "design"
    listed = (folder / "README.md").read_text()
    notes = sorted(folder.glob("0*.md"))
    # Each number once; one may be missing while its note is on its way.
    assert len({note.name[:4] for note in notes}) == len(notes)
    for note in notes:
        assert f"({note.name})" in listed, f"{note.name} is not in docs/design/README.md"
        text = note.read_text()
        for section in ("Context", "Decision", "Alternatives considered", "Consequences"):
            assert f"\n## {section}\n" in text, f"{note.name} lacks the section {section}"


def test_the_page_of_the_api_has_each_public_name_once() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    assert sorted(re.findall(r"^::: late[.](\w+)$", text, re.M)) == sorted(
        [*late.__all__, "testing"]
    )


def test_the_state_machine_page_is_made_from_the_table() -> None:
    assert state_machine.PAGE.read_text() == state_machine.page(TRANSITIONS), (
        "run: python scripts/state_machine.py"
    )


def test_the_table_of_states_is_closed() -> None:
    assert {other for following in TRANSITIONS.values() for other in following} <= set(TRANSITIONS)
    assert set(state_machine.MEANING) == set(TRANSITIONS)


def test_an_unlisted_skip_is_an_objection() -> None:
    assert objection("Skipped: too lazy", in_ci=False) is not None
    assert all(objection(reason, in_ci=False) is None for reason in SKIPS)


def test_in_ci_a_missing_server_is_an_objection() -> None:
    assert objection("no PostgreSQL: set a URL", in_ci=False) is None
    assert objection("no PostgreSQL: set a URL", in_ci=True) is not None
