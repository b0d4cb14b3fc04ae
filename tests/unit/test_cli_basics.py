"""What every command shares: help, URLs, exit codes, one line for a user's mistake."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from late import errors
from late.cli import options
from late.cli.main import app, code_of, program
from late.config import package_version
from late.errors import ConfigError
from tests.unit.cli_kit import Cli

COMMANDS = [
    ("migrate",), ("worker",), ("enqueue",), ("status",), ("show",), ("doctor",), ("rebase",),
    ("demo",), ("shards",), ("groups",), ("dead", "list"), ("dead", "show"), ("dead", "purge"),
    ("dead", "redrive"), ("schedule", "list"), ("schedule", "pause"), ("schedule", "resume"),
    ("schedule", "run"), ("schedule", "backfill"), ("schedule", "remove"),
    ("check",), ("verify",), ("bench",), ("size",), ("simulate",),
    ("group", "create"), ("group", "list"), ("group", "show"), ("group", "set"), ("group", "pause"),
    ("group", "resume"), ("group", "delete"), ("group", "reset"), ("group", "shadow"),
    ("group", "compare"), ("group", "cancel-replay"), ("wait",),
    ("retention",), ("knobs", "rollback"),
    ("queue", "show"), ("queue", "set"), ("queue", "pause"), ("queue", "resume"),
    ("queue", "delete"),
    ("target", "show"), ("target", "set"), ("target", "pause"), ("target", "resume"),
    ("cancel",), ("reschedule",), ("dead", "edit"),
    ("tasks", "list"), ("tasks", "cancel"), ("tasks", "reschedule"),
    ("workflow", "list"), ("workflow", "show"), ("workflow", "cancel"), ("workflow", "wait"),
    ("workflow", "redrive"),
    ("serve",), ("keys", "rotate"), ("keys", "drop"), ("keys", "rewrap"),
    ("url", "sign"),
    ("token", "list"), ("token", "create"), ("token", "revoke"),
    ("roles", "sql"),
    ("target", "list"), ("lake", "show"), ("lake", "export"), ("report", "throughput"),
    ("report", "cost"), ("report", "impact"), ("report", "capacity"), ("report", "live"),
    ("close",),
    ("autoscale", "run"), ("autoscale", "status"), ("autoscale", "history"),
    ("autoscale", "simulate"), ("autoscale", "workers"),
    ("celery", "scan"), ("celery", "beat"), ("celery", "ramp"),
    ("metrics",), ("top",), ("analyze",), ("alerts", "list"),
    ("alerts", "render"), ("alerts", "dashboard"),
    ("config", "show"), ("config", "check"), ("help",),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(cli: Cli, command: tuple[str, ...]) -> None:
    text = cli.fine(*command, "--help").out
    assert "Usage:" in text
    folders = tuple(("report", name) for name in ("cost", "impact", "capacity", "live"))
    made = (("metrics",), ("alerts", "render"), ("alerts", "dashboard"))  # for other programs
    live = (("worker",), ("serve",), ("top",), ("help",))
    if command not in (*live, ("roles", "sql"), *folders, *made):
        assert "--json" in text


@pytest.mark.parametrize("module", ["late", "late.cli"])
def test_the_module_runs_as_the_command_does(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["late", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert (ended.value.code, capsys.readouterr().out) == (0, f"late {package_version()}\n")
    monkeypatch.setattr(sys, "argv", ["late", "migrate", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code == 2


def test_the_list_above_is_complete() -> None:
    group = typer.main.get_command(app)
    found = set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {(name, sub) for sub in inner} if inner else {(name,)}
    assert found == set(COMMANDS)


@pytest.mark.parametrize("name", sorted({path[0] for path in COMMANDS}))
def test_a_command_is_built_alone_and_is_the_same(
    name: str, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(program(name).commands) == {name}
    alone = cli.fine(name, "--help").out
    program("")(args=[name, "--help"], prog_name="late", standalone_mode=False)
    assert capsys.readouterr().out == alone


def test_help_names_the_exit_codes_and_version_works(cli: Cli) -> None:
    assert "Exit codes" in cli.fine("--help").out
    assert cli.fine("--version").out.startswith("late ")
    assert cli("no-such-command").code == 2
    assert cli("status", "--no-such-option").code == 2


def test_help_is_a_command_too(cli: Cli) -> None:
    assert cli.fine("help").out == cli.fine("--help").out
    assert cli.fine("help", "tasks", "list").out == cli.fine("tasks", "list", "--help").out
    assert "no such command" in cli.refused("help", "nonsense")


def test_the_shell_completes_commands_and_their_options(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(line: str) -> dict[str, str]:
        return {"_LATE_COMPLETE": "complete_bash", "COMP_WORDS": line,
                "COMP_CWORD": str(len(line.split()) - 1)}  # fmt: skip

    def words(line: str) -> list[str]:
        for name, value in asked(line).items():
            monkeypatch.setenv(name, value)
        return cli.fine().out.split()

    assert words("late resch") == ["reschedule"]
    assert words("late tasks canc") == ["cancel"]
    assert "--dry-run" in words("late tasks cancel --dr")
    ended = subprocess.run(
        [sys.executable, "-m", "late.cli"], capture_output=True, text=True, check=False,
        env=os.environ | asked("late resch"),
    )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("reschedule\n", "")


def test_help_loads_no_database_driver() -> None:
    code = (
        "import sys\n"
        "from late.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'sqlalchemy', 'alembic', 'psycopg', 'rich', 'late.control', 'late.app'}\n"
        "sys.exit(', '.join(sorted(heavy & sys.modules.keys())) or 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_python_dash_m_is_the_same_command() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "LATE_URL"}
    ended = subprocess.run(
        [sys.executable, "-m", "late.cli", "status"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert ended.returncode == 2
    said = "late: no database: give a URL, --url, or set LATE_URL, or url in late.toml\n"
    assert ended.stderr == said


def test_a_reader_that_goes_away_is_met_with_silence() -> None:
    """`late … | head`: the pipe is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "late.cli", "--help"],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert process.stderr == ""


def test_where_the_url_comes_from(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATE_URL")
    assert "set LATE_URL" in cli.refused("status")
    for arguments in (("status", cli.url), ("status", "--url", cli.url), ("status", "-u", cli.url)):
        cli.fine(*arguments)
    cli.fine("status", cli.url, "--url", cli.url)
    assert "two different URLs" in cli.refused("status", cli.url, "--url", "sqlite:///other.db")
    monkeypatch.setenv("LATE_URL", "sqlite:///absent.db")
    cli.fine("status", cli.url)


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("shop.db", 2, "not a database URL"),
        ("mysql://me:sesame@host/shop", 2, "no store for 'mysql'"),
        ("postgresql://me:sesame@host:port/shop", 2, "not a database URL"),
        ("postgresql://me:sesame@127.0.0.1:1/shop", 1, "127.0.0.1"),
        ("sqlite:///no/such/folder/shop.db", 1, "no database file"),
        ("sqlite:///absent.db", 1, "late migrate"),
    ],
)
def test_a_wrong_url_is_one_line_without_the_password(
    cli: Cli,
    url: str,
    code: int,
    words: str,
) -> None:
    for command in (("status",), ("dead", "list"), ("schedule", "list"), ("shards",)):
        line = cli.refused(*command, "--url", url, code=code)
        assert words in line
        assert "sesame" not in line


def test_a_file_that_is_no_database(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes " * 1000)
    assert "not a database" in cli.refused("status", f"sqlite:///{tmp_path}/notes.txt", code=1)


def test_each_error_has_a_code() -> None:
    """2: what was asked is wrong. 1: it went wrong."""
    codes = {
        name: code_of(kind("x"))
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.LateError)
    }
    wrong = {name for name, code in codes.items() if code == 2}
    assert wrong == {
        "ConfigError", "InvalidTask", "InvalidName", "InvalidPayload", "PayloadTooLarge",
        "InvalidSchedule", "InvalidPolicy", "InvalidCron", "BatchTooLarge", "KeyConflict",
        "UnknownTask", "Conflict", "SecondBlock",
    }  # fmt: skip
    assert codes["StoreUnavailable"] == codes["SchemaMismatch"] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90_000_000), ("90s", 90_000_000), ("1.5h", 5_400_000_000), ("7d", 604_800_000_000),
     ("250ms", 250_000), ("2w", 1_209_600_000_000), ("5us", 5), ("-5", -5_000_000)],
)  # fmt: skip
def test_durations(text: str, expected: int) -> None:
    assert options.duration_us(text, "--delay") == expected


@pytest.mark.parametrize("text", ["", "soon", "5x", "nan", "inf", "1e999", "h", "1 h 2 m", "٣x"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--delay"):
        options.duration_us(text, "--delay")


def test_moments() -> None:
    now = 1_800_000_000_000_000
    assert options.moment_us("2h", "--since", now) == now - 7_200_000_000
    assert options.moment_us("1970-01-01T00:00:01Z", "--since", now) == 1_000_000
    assert options.moment_us("1970-01-01T02:00:01+02:00", "--since", now) == 1_000_000
    before_year_1 = "0001-01-01T00:00:00+14:00"
    for text in ("yesterday", "2026-05-01T12:00:00", "2026-13-01T00:00Z", before_year_1, ""):
        with pytest.raises(ConfigError, match="--since"):
            options.moment_us(text, "--since", now)


def test_a_place_that_is_none_says_what_there_is(cli: Cli) -> None:
    said = cli.refused("group", "reset", "default", "--to", "yesterday", "--dry-run")
    assert "--from or --to 'yesterday': expected beginning, now, or a time" in said
    assert "2h" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wait",), "missing option '--until'; see late wait --help"),
        (("queue", "set", "mail"), "missing argument 'KNOB=VALUE...'; see late queue set --help"),
        (("dead", "redrive", "--rate", "x"), "invalid value for '--rate': "),
        (("worker", "shop:app", "--concurrency", "0"), "invalid value for '--concurrency': "),
        (("queue", "--nope"), "no such option: --nope"),
        (("nope",), "no such command 'nope'; see late --help"),
        (
            ("dead", "list", "postgresql://me:secret@host/db"),
            "got unexpected extra argument(s) (postgresql://me:***@host/db);"
            " see late dead list --help",
        ),
    ],
    ids=str,
)
def test_words_that_cannot_be_read_are_one_line(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    assert said in cli.refused(*words)


def test_a_group_of_commands_alone_lists_them(cli: Cli) -> None:
    ended = cli("group")
    assert ended.code == 2
    assert "reset" in ended.out + ended.err


class Terminal(io.StringIO):
    """Somebody types."""

    def isatty(self) -> bool:
        return True


def test_who_cannot_answer_is_not_asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.fine("group", "create", "audit", "--start-from", "now")
    for words in (("delete", "audit"), ("reset", "audit", "--to", "now")):
        assert "give --yes" in cli("group", *words).err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    ended = cli("group", "delete", "audit")
    assert (ended.code, ended.err) == (1, "late: not confirmed, so nothing was done\n")
    cli.fine("group", "show", "audit")


def test_a_place_or_a_name_that_cannot_be_is_named(cli: Cli) -> None:
    said = cli.refused("group", "create", "audit", "--start-from", "2999-01-01T00:00Z")
    assert "--start-from '2999-01-01T00:00Z' has not come" in said
    assert "[A-Za-z0-9._:-]{1,128}" in cli.refused("group", "create", "a b", "--start-from", "now")
    assert "known: default. Make one" in cli.refused("group", "show", "nope")
    assert "no consumer group 'nope'" in cli.refused("dead", "redrive", "--all", "--group", "nope")
    cli.fine("group", "create", "old", "--start-from", "99999w")
    assert "--expires '0d'" in cli.refused(
        "token", "create", "t", "--scope", "view", "--expires", "0d"
    )


def test_a_group_is_behind_by_the_workers_measure(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "idle" in cli.fine("status").out
    cli.fine("enqueue", "greet")
    shown = cli.fine("group", "list").out
    assert ("LAGGING" in shown, "nobody works" in shown) == (False, True)
    monkeypatch.setenv("LATE_LAG_ALARM_S", "0.000001")
    for words in (("group", "list"), ("group", "show", "default"), ("status",)):
        assert "LAGGING" in cli.fine(*words).out
    assert "Group default lags" in cli.fine("top").out
    for deed in ("pause", "resume"):
        assert "LAGGING" in cli.fine("group", deed, "default").out
    monkeypatch.setenv("LATE_LAG_ALARM_S", "0")  # none is raised
    assert "LAGGING" not in cli.fine("group", "list").out
    assert "lags" not in cli.fine("top").out
    monkeypatch.setenv("LATE_LAG_ALARM_S", "soon")
    cli.refused("group", "list")
