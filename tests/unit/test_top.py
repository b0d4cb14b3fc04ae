"""`late top`: the models of the page in a terminal."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from late.cli.top import bars, frame
from late.control.views import Count, QueueStatus
from late.model.queue_settings import QueueSettings
from late.web.snapshot import Snapshot
from tests.conformance.kit import task
from tests.integration.control_kit import insert
from tests.support import sqlite
from tests.unit.cli_kit import Cli
from tests.unit.test_web_views import seen

PATIENCE_S = 120.0


def shown(found: Snapshot, *, width: int = 100, **options: Any) -> list[str]:
    console = Console(width=width, highlight=False, markup=False, color_system=None)
    with console.capture() as captured:
        console.print(frame(found, options.pop("points", ()), where="sqlite:///q.db", **options))
    return captured.get().splitlines()


def some(count: int) -> Snapshot:
    return seen(*(QueueStatus("default", f"q{n:03}", Count(n)) for n in range(count)))


def test_the_busiest_queues_come_first_and_fit_the_screen() -> None:
    lines = shown(some(50), height=20)
    assert len(lines) <= 20
    names = [line.split()[0] for line in lines if line.startswith("q0")]
    assert names[:3] == ["q049", "q048", "q047"]
    assert lines[-1].strip() == f"and {50 - len(names)} more"
    (line,) = (each for each in shown(some(50), text="Q007") if each.startswith("q0"))
    assert line.split()[3] == "7"


def test_it_says_what_the_page_says() -> None:
    found = seen(QueueStatus("default", "mail", Count(3), dead=Count(1_000, True)),
                 workers=(), settings={"mail": QueueSettings(paused=True)})  # fmt: skip
    text = "\n".join(shown(found, trouble="The database does not answer.", age_s=9.0))
    for part in ("No worker is alive", "Dead letters in mail", "1,000+", "paused",
                 "The database does not answer. What you see is 9.0 s old."):  # fmt: skip
        assert part in text
    assert "Nothing needs attention." in shown(seen(QueueStatus("default", "mail")))[2]


def test_a_name_drives_no_terminal_and_breaks_no_line() -> None:
    evil = "\x1b]0;owned\x07[red]x[/red]\n\u202e"
    lines = shown(seen(QueueStatus("default", evil, dead=Count(1))), width=200)
    assert not any(set("\x1b\x07\u202e") & set(line) for line in lines)
    assert any("[red]x[/red]" in line for line in lines)
    assert all(len(line) <= 40 for line in shown(some(3), width=40))


def test_bars_are_by_the_greatest() -> None:
    assert bars([0, 1, 4, 8]) == "▁▂▅█"
    assert (bars([0.0, 0.0]), bars([])) == ("▁▁", "")
    lines = shown(some(1), points=[(1.0, 5, 0.5), (2.0, 10, 0.0)])
    assert [line.split() for line in lines[2:4]] == [["backlog", "▅█", "10"],
                                                     ["attempts/s", "█▁", "0"]]  # fmt: skip


def test_one_look_goes_into_a_pipe(cli: Cli) -> None:
    insert(cli.url, task(0, queue="mail"), task(1, queue="mail"))
    ended = cli("top")
    assert ended.code == 0, ended.err
    assert "No worker is alive" in ended.out
    assert any(line.split()[:1] == ["mail"] for line in ended.out.splitlines())
    assert "no database file" in cli.refused("top", "sqlite:///never.db", code=1)


def test_one_look_for_programs(cli: Cli) -> None:
    insert(cli.url, task(0, queue="mail"), task(1, queue="post"))
    found = json.loads(cli.fine("top", "--json", "--queue", "ma").out)
    assert found.keys() == {"now_us", "figures", "attention", "unseen", "workers", "queues"}
    assert found["attention"][0]["what"] == "No worker is alive"
    assert found["attention"][0]["command"] == "late worker MODULE:APP"
    assert [each["queue"] for each in found["queues"]] == ["mail"]


def test_a_finding_comes_with_its_command() -> None:
    lines = shown(seen(workers=()))
    at = next(n for n, line in enumerate(lines) if "No worker is alive" in line)
    assert lines[at + 1].strip() == "run: late worker MODULE:APP"


def test_q_ends_it_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "q.db")
    ours, its = os.openpty()
    termios.tcsetwinsize(its, (24, 80))
    before = termios.tcgetattr(its)
    command = [sys.executable, "-m", "late.cli", "top", url, "--every", "3600"]
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    try:
        read(ours, b"No worker is alive")
        os.write(ours, b"q")
        read(ours, b"\x1b[?1049l")  # the screen that was there before
        assert process.wait(PATIENCE_S) == 0
        assert termios.tcgetattr(its) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)


def read(terminal: int, wanted: bytes) -> bytes:
    """What the terminal shows, up to what is waited for."""
    found, end = b"", time.monotonic() + PATIENCE_S
    while wanted not in found:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, found
        found += os.read(terminal, 65_536)
    return found
