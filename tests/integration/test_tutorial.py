"""The tutorial works as it stands: each block is run, in order, and gives what the page shows."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.M | re.S)
WAIT_S = 120
ALREADY = (
    "mkdir tour", "cd tour", "python3 -m venv .venv", ". .venv/bin/activate",
    "pip install 'late-queue[serve]'",
)  # fmt: skip
"""What the environment of the tests stands for; tests/integration/test_wheel.py installs."""
MORE = {"late serve --url sqlite:///tour.db --roles web": ["--http-port", "0"]}
"""The port of the page may be taken here."""


def as_pattern(line: str) -> str:
    """`...` alone stands for any number of lines, and within a line for any part of it."""
    if line == "...":
        return "(.*\n)*"
    return re.escape(line).replace(r"\.\.\.", ".*").replace(r"\ .*\ ", ".* ") + "\n"


class Terminal:
    """A program that runs on: its lines come from a thread, so that a wait for one can end."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.process = subprocess.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.rstrip("\n"))

    def until(self, wanted: str) -> str:
        """The next line that has this text in it."""
        while True:
            try:
                line = self.lines.get(timeout=WAIT_S)
            except queue.Empty:
                raise AssertionError(f"no {wanted!r} after {self.seen}") from None
            self.seen.append(line)
            if wanted in line:
                return line

    def stop(self) -> None:
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(WAIT_S) in (0, 130)


class Reader:
    """Somebody who does what the page says, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, Terminal] = {}
        self.seen: list[str] = []

    def write(self, title: str, text: str) -> None:
        name, _, where = title.partition(", ")
        path = self.folder / name
        if not where:
            path.write_text(text)
            return
        lines = path.read_text().splitlines(keepends=True)
        if where == "above __main__":
            (at,) = (n for n, line in enumerate(lines) if "__main__" in line)
            lines[at:at] = [*text.splitlines(keepends=True), "\n", "\n"]
        else:
            assert where == "in place of the line with raise"
            (at,) = (n for n, line in enumerate(lines) if line.lstrip().startswith("raise "))
            lines[at : at + 1] = [text]
        path.write_text("".join(lines))

    def type(self, command: str, shown: list[str]) -> None:
        if command in ALREADY:
            return
        words = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", command)]
        program = [sys.executable, "-m", "late"] if words[0] == "late" else [sys.executable]
        if words[1] in ("worker", "serve"):
            if words[1] in self.running:
                self.stop(words[1])
            more = MORE.get(command, [])
            self.running[words[1]] = Terminal([*program, *words[1:], *more], self.folder)
            for line in shown:
                self.running[words[1]].until(line)
            return
        assert words[0] in ("late", "python")
        done = subprocess.run(
            [*program, *words[1:]], cwd=self.folder, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        assert re.fullmatch("".join(map(as_pattern, shown)), done.stdout), (command, done.stdout)

    def stop(self, which: str) -> None:
        terminal = self.running.pop(which)
        terminal.stop()
        self.seen += terminal.seen

    def console(self, text: str) -> None:
        command, shown = "", list[str]()
        for line in [*text.splitlines(), "$ "]:
            if not line.startswith("$ "):
                shown.append(line)
                continue
            if command:
                self.type(command, shown)
            command, shown = line.removeprefix("$ "), []


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    yield found
    for terminal in found.running.values():
        terminal.process.kill()
        terminal.process.wait()


def test_each_block_gives_what_the_page_shows(reader: Reader) -> None:
    for kind, title, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            reader.write(title, text)
        elif kind == "console":
            reader.console(text)
        else:
            assert (kind, title) == ("text", "the worker")
            for line in text.splitlines():
                reader.running["worker"].until(line)
    # Then the page is where its log line says
    url = reader.running["serve"].until("event=page_served").rpartition("url=")[2]
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        assert "late" in answer.read().decode()
    for name in ("worker", "serve"):
        reader.stop(name)
    # And who was rolled back was never greeted
    assert "hello, Grace" in reader.seen
    assert "hello, Nobody" not in reader.seen


def test_the_page_has_a_block_for_each_step() -> None:
    steps = re.split(r"^## \d\. ", PAGE.read_text(), flags=re.M)[1:]
    assert len(steps) == 5
    assert all(BLOCK.search(step) for step in steps)
