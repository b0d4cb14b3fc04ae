"""Commands that size, files of metrics, and `late autoscale run`, `status`, `history`."""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from late.autoscaler.metrics.file import FileSource
from late.autoscaler.metrics.source import Metrics, MetricsError
from late.autoscaler.targets.command import CommandSizer
from late.autoscaler.targets.sizer import ResizeError
from late.control import Control
from late.errors import ConfigError
from tests.unit.cli_kit import Cli


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "tool.py"
    path.write_text(text)
    return str(path)


TOOL = """
import os, sys
where = os.path.join(os.path.dirname(__file__), "size")
if len(sys.argv) == 1:
    print(open(where).read())
elif sys.argv[1] == "99":
    sys.exit("no more\\nquota is used up")
else:
    assert os.environ["LATE_SIZE"] == sys.argv[1]
    open(where, "w").write(sys.argv[1])
"""


def test_a_command_sizes_what_late_does_not_know(tmp_path: Path) -> None:
    tool = script(tmp_path, TOOL)
    (tmp_path / "size").write_text("4")
    command = [sys.executable, tool]
    sizer = CommandSizer("crdb", size=command, resize=[*command, "{size}"])
    assert sizer.size() == 4
    assert sizer.resize(4, 7).done()
    assert sizer.size() == 7
    with pytest.raises(ResizeError, match="exit 1: quota is used up"):
        sizer.resize(7, 99)
    (tmp_path / "size").write_text("seven; drop table")
    with pytest.raises(ResizeError, match="no size"):
        sizer.size()


def test_commands_that_hang_or_are_not_there() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(ResizeError, match="timed out"):
        CommandSizer("x", size=sleeper, resize=sleeper, timeout_s=0.2).size()
    with pytest.raises(ResizeError, match="not run"):
        CommandSizer("x", size=["/nowhere/tool"], resize=["x"]).size()
    with pytest.raises(ConfigError):
        CommandSizer("x", size=[], resize=["x"])


def test_a_command_that_never_ceases_to_print_fills_no_memory() -> None:
    endless = [sys.executable, "-c", "while True: print('x' * 1000)"]
    tracemalloc.start()
    with pytest.raises(ResizeError, match="timed out"):
        CommandSizer("x", size=endless, resize=endless, timeout_s=0.5).size()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_what_a_command_has_started_ends_with_its_time(tmp_path: Path) -> None:
    """Or the next try would run beside it."""
    # A shell, for it must have written within the time, also on a busy machine.
    command = ["/bin/sh", "-c", 'sleep 60 & echo $! > "$0"; sleep 60', str(tmp_path / "pid")]
    with pytest.raises(ResizeError, match="timed out"):
        CommandSizer("x", size=command, resize=command, timeout_s=2.0).size()
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} goes on")


def test_what_a_command_leaves_behind_is_not_waited_for() -> None:
    code = (
        "import subprocess, sys; print(7, flush=True)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)'])"
    )
    command = [sys.executable, "-c", code]
    assert CommandSizer("x", size=command, resize=command, timeout_s=20.0).size() == 7


def test_a_file_of_metrics(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    path.write_text(
        "at,cpu,size,storage_bytes\n1000000,40,10,\n2026-01-05T00:00:00Z,61.5,12,1e12\n17,9"
    )
    found = FileSource(path).read(0)
    # The last line has no end yet: it is being written.
    assert found == Metrics(1_767_571_200_000_000, 61.5, 12, None, 10**12)
    assert FileSource(path).past(0, 2_000_000) == [(1_000_000, 4.0)]


def test_one_bad_line_of_a_file_blinds_nobody(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    path.write_text('\ufeffat,cpu,size\r\n1000000,"4\r\n2000000,much,3\r\n3000000,50,10\r\n')
    source = FileSource(path)
    assert source.read(0) == Metrics(3_000_000, 50.0, 10)
    assert source.past(0, 9_000_000) == [(3_000_000, 5.0)]
    with path.open("a") as file:
        file.write('4000000,"' + "9" * 200_000 + "\n")
    assert source.read(0) == Metrics(), "longer than any line: nothing is known"
    with path.open("a") as file:
        file.write("5000000,lots,10\n")
    with pytest.raises(MetricsError, match="cpu = 'lots'"):
        source.read(0)


def test_of_a_large_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    path.write_text("at,cpu\n" + "".join(f"{n},{n % 90}\n" for n in range(20_000)))
    assert FileSource(path).read(0) == Metrics(19_999, 19_999 % 90)


@pytest.mark.parametrize(
    "text",
    ["at,cpu\nyesterday,5\n", "at,cpu\n2026-01-05T00:00:00,5\n", "at\n5\n", "at,cpu\n5,nan\n"],
)
def test_a_file_that_cannot_be_read_is_no_metrics(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cpu.csv"
    path.write_text(text)
    with pytest.raises(MetricsError):
        FileSource(path).read(0)
    with pytest.raises(MetricsError):
        FileSource(tmp_path / "none.csv").read(0)


def test_run_status_and_history_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    tool = script(tmp_path, TOOL)
    (tmp_path / "size").write_text("4")
    (tmp_path / "policy.toml").write_text("min = 2\nmax = 20\nsmooth = 1\n")
    with Control(cli.url) as control:
        now = control.now()
    (tmp_path / "cpu.csv").write_text(f"at,cpu\n{now},85\n")
    command = f"{sys.executable} {tool}"
    arguments = (
        "autoscale", "run", "-p", "policy.toml", "--metrics", "cpu.csv", "--size-command", command,
        "--resize-command", f"{command} {{size}}", "--name", "crdb", "--once",
    )  # fmt: skip
    assert "4 to 6, dry run" in cli.fine(*arguments, "--dry-run").out
    assert (tmp_path / "size").read_text() == "4"
    made = cli.fine(*arguments, "--json").json
    assert (made["decision"]["to_size"], made["result"]) == (6, "applied")
    assert (tmp_path / "size").read_text() == "6"
    (view,) = cli.fine("autoscale", "status", "--json").json["controllers"]
    assert (view["name"], view["owner"], view["epoch"]) == ("crdb", None, 2)
    rows = cli.fine("autoscale", "history", "--json").json["decisions"]
    assert [row["result"] for row in rows] == ["applied", "dry run"]
    assert json.dumps(rows[0]["inputs"])
    assert "linear" in cli.fine("autoscale", "history", "--changes").out
    assert "crdb" in cli.fine("autoscale", "status").out


def test_a_single_look_that_fails_says_so_and_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("min = 5\nmax = 20\n")
    with Control(cli.url) as control:
        (tmp_path / "cpu.csv").write_text(f"at,cpu\n{control.now()},65\n")
    fail = f"{sys.executable} -c \"import sys; sys.exit('no quota')\""
    run = ("autoscale", "run", "-p", "policy.toml", "--metrics", "cpu.csv", "--once",
           "--size-command", "echo 4", "--resize-command", fail)  # fmt: skip
    ended = cli(*run)
    assert ended.code == 1
    assert "4 to 5, failed: exit 1: no quota" in ended.out
    assert cli(*run, "--json").json["result"] == "failed: exit 1: no quota"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "--spanner"),
        (("--size-command", "echo 4"), "go together"),
        (("--size-command", "echo four", "--resize-command", "true"), "--size-command echo four"),
        (("--spanner", "shop"), "projects/PROJECT/instances"),
        (("--size-command", "echo '4", "--resize-command", "true"), "cannot be read"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(
    cli: Cli, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    (tmp_path / "policy.toml").write_text("min = 2\nmax = 20\n")
    (tmp_path / "cpu.csv").write_text("at,cpu\n")
    run = ("autoscale", "run", "-p", "policy.toml", "--metrics", "cpu.csv", "--once", *more)
    assert words in cli.refused(*run)
    (tmp_path / "policy.toml").write_text("min = 30\nmax = 20\n")
    assert "min = 30" in cli.refused(*run)


def test_monitoring_of_nothing_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("min = 2\nmax = 20\n")
    start = ("autoscale", "run", "-p", "policy.toml", "--size-command", "echo 4", "--once",
             "--resize-command", "true", "--metrics")  # fmt: skip
    assert "--spanner" in cli.refused(*start, "monitoring")
    assert "none.csv" in cli.refused(*start, "none.csv")
    (tmp_path / "load.csv").write_text("load\n3\n")
    assert "no column `at`" in cli.refused(*start, "load.csv")
    assert "Is a directory" in cli.refused(*start, ".")


def test_a_lane_takes_no_other_thing_to_size(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "lane.toml").write_text("units = 'shards'\nmin = 2\nmax = 16\n")
    run = ("autoscale", "run", "-p", "lane.toml", "--lane", "default", "--once")
    assert "--lane" in cli.refused(*run, "--spanner", "projects/p/instances/i")
    assert "--lane" in cli.refused(*run, "--size-command", "echo 4")
    assert "no lane 'bulk'" in cli.refused(*run[:-3], "--lane", "bulk", "--once")
