"""`late.toml`: which file is read, what is refused, and which source decides a setting."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from late import config
from late.cli.config import catalogue, environment, file
from late.errors import ConfigError
from late.worker.reload import Reading
from scripts import settings_doc
from tests.unit.cli_kit import Cli

ROOT = Path(__file__).resolve().parents[2]
APP = """
import late
app = late.App("sqlite:///shop.db")

@app.task()
def hello() -> None: ...
"""


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """A folder of its own, without variables, with an app of one task."""
    for name in [name for name in os.environ if name.startswith("LATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "config_shop.py").write_text(APP)
    yield Cli(capsys, "")
    file.named_file.set(None)


def write(text: str, name: str = "late.toml", mode: int = 0o600) -> Path:
    path = Path(name)
    path.write_text(text)
    path.chmod(mode)
    return path


def shown(cli: Cli, *words: str) -> dict[tuple[str, str], tuple[Any, str, Any]]:
    rows = cli.fine("config", "show", "--json", *words).json["settings"]
    return {(r["section"], r["name"]): (r["value"], r["source"], r["where"]) for r in rows}


# ---------------------------------------------------------------------- what is refused

WRONG = {
    "[worker]\nconcurency = 4": "no such key: [worker] concurency; did you mean concurrency?",
    "[worker]\ngrace-s = 4": "no such key: [worker] grace-s; did you mean grace_s?",
    "[worker]\nzebra = 4": "no such key: [worker] zebra; late config show lists those",
    "[worker]\nhttp_port = 4": "no such key: [worker] http_port; it belongs under [serve]",
    "[worker]\nurl = 'x'": "no such key: [worker] url; it belongs above the first section",
    "concurrency = 4": "no such key: concurrency; it belongs under [worker]",
    "[workers]\nconcurrency = 4": "no such section: [workers]; did you mean [worker]?",
    "worker = 4": "worker is a section: write [worker] above its keys",
    "[worker]\nconcurrency = '4'": "[worker] concurrency='4': expected int, got str",
    "[worker]\nconcurrency = 0": "[worker] concurrency=0: expected int >= 1",
    "[worker]\nconcurrency = true": "[worker] concurrency=True: expected int, got bool",
    "[worker]\ngrace_s = nan": "[worker] grace_s=nan: expected float",
    "[worker]\nprocesses = 'many'": "[worker] processes='many': ",
    "[serve]\nhttp_port = 99999": "[serve] http_port=99999: expected int <= 65535",
    "[serve]\nrole = 'group:a=admin'": "[serve] role='group:a=admin': expected array, got str",
    "url = 5": "url=5: expected str, got int",
    "[worker\n": "no TOML: ",
    "url = 'a'\nurl = 'b'": "no TOML: ",
    "[worker]\nlisten_url = ['postgresql://u:hunter2@h/d']": "[worker] listen_url=['postgresql://u:***@h/d']",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_one_line_says_what_is_wrong(cli: Cli, text: str) -> None:
    write(text)
    checked = cli("config", "check", "late.toml")
    assert (checked.code, checked.out, checked.err.count("\n")) == (2, "", 1)
    assert checked.err.startswith(f"late: late.toml: {WRONG[text]}")
    assert "hunter2" not in checked.err


def test_commands_say_the_same_and_open_nothing(cli: Cli) -> None:
    write("[worker]\nconcurency = 4")
    said = cli("config", "check", "late.toml").err
    for words in (("status",), ("worker", "config_shop:app"), ("autoscale", "run", "-p", "p.toml")):
        assert cli.refused(*words) == said
    assert not Path("shop.db").exists()


def test_bytes_that_are_no_text_and_files_that_are_none(cli: Cli, tmp_path: Path) -> None:
    Path("late.toml").write_bytes(b"url = '\xff'")
    assert "late.toml: not UTF-8" in cli.refused("status")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: not a file" in cli.refused("--config", "pipe", "status")
    assert f"{tmp_path}: not a file" in cli.refused("--config", str(tmp_path), "status")
    write("#" * (file.SIZE_MAX + 1))
    assert "larger than 1,048,576 bytes" in cli.refused("status")
    assert "--config 'none.toml': no such file" in cli.refused("--config", "none.toml", "status")


def test_what_the_struct_refuses_is_said_with_the_file(cli: Cli) -> None:
    write("[worker]\nwindow = 500")
    said = "late.toml: page_size=1000 is over window=500"
    assert said in cli.refused("worker", "config_shop:app")
    assert said in cli("config", "check", "late.toml").err
    assert "concurrency" not in said


def test_check_tells_every_fault(cli: Cli) -> None:
    write("url = 5\n[worker]\na = 1\nb = 2")
    assert cli("config", "check", "late.toml").err.count("late: late.toml: ") == 3
    assert len(cli("config", "check", "late.toml", "--json").json["problems"]) == 3
    write("[worker]\nexit_when_stuck = true\nprocesses = 4")
    assert cli.fine("config", "check", "late.toml").out == "late.toml is right\n"


# ---------------------------------------------------------------------- which file


def test_the_file_is_the_named_one_else_that_of_the_environment_else_the_usual(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def concurrency(*words: str) -> Any:
        rows = cli.fine(*words, "config", "show", "--json", "worker").json["settings"]
        return next(each["value"] for each in rows if each["name"] == "concurrency")

    assert concurrency() == 16
    for number, name in enumerate(("late.toml", "env.toml", "flag.toml"), start=1):
        write(f"[worker]\nconcurrency = {number}", name)
    assert concurrency() == 1
    monkeypatch.setenv("LATE_CONFIG", "env.toml")
    assert concurrency() == 2
    assert concurrency("--config", "flag.toml") == 3
    worker = shown(cli, "worker", "config_shop:app", "--config", "flag.toml")
    assert worker["worker", "concurrency"] == (3, "file", "flag.toml [worker] concurrency")
    assert concurrency() == 2, "a flag is for one call"
    monkeypatch.setenv("LATE_CONFIG", "/dev/null")
    assert concurrency() == 16
    monkeypatch.setenv("LATE_CONFIG", "gone.toml")
    assert "LATE_CONFIG 'gone.toml': no such file" in cli.refused("config", "show")


@pytest.mark.parametrize(
    ("text", "mode", "warned"),
    [
        ("[worker]\ngrace_s = 1", 0o644, None),
        ("[worker]\ngrace_s = 1", 0o646, "can be written by everybody"),
        ("url = 'postgresql://u:hunter2@h/d'", 0o640, None),
        ("url = 'postgresql://u:hunter2@h/d'", 0o644, "holds a password"),
        ("[worker]\nread_url = 'postgresql://h/d?password=hunter2'", 0o604, "holds a password"),
    ],
)
def test_an_unsafe_file_is_warned_of(cli: Cli, text: str, mode: int, warned: str | None) -> None:
    write(text, mode=mode)
    for words in (("config", "show"), ("config", "check", "late.toml")):
        ended = cli.fine(*words)
        assert (warned or "warning") in ended.err if warned else not ended.err
        assert "hunter2" not in ended.out + ended.err


# ---------------------------------------------------------------------- which source


def test_a_flag_before_the_environment_before_the_file_before_the_default(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Reading] = []
    monkeypatch.setattr(
        "late.worker.worker.run", lambda app, *, read, **_: started.append(read()) or 0
    )

    def both(*flags: str) -> tuple[int, str, Any]:
        """What a worker begins with, and what `late config show` says of it."""
        cli.fine("worker", "config_shop:app", *flags)
        value, *rest = shown(cli, "worker", "config_shop:app", *flags)["worker", "concurrency"]
        assert value == started[-1].worker.concurrency
        return (value, *rest)  # type: ignore[return-value]

    assert both() == (16, "default", None)
    write("[worker]\nconcurrency = 32\nlog_level = 'ERROR'")
    assert both() == (32, "file", "late.toml [worker] concurrency")
    assert started[-1].command["log_level"] == "ERROR"
    monkeypatch.setenv("LATE_CONCURRENCY", "8")
    assert both() == (8, "environment", "LATE_CONCURRENCY")
    assert both("--concurrency", "3") == (3, "flag", "--concurrency")
    assert both("--set", "concurrency=4")[:2] == (4, "flag")


def test_a_file_that_is_gone_is_no_change_to_the_defaults(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[Callable[[], Reading]] = []
    monkeypatch.setattr("late.worker.worker.run", lambda app, *, read, **_: readers.append(read))
    cli.fine("worker", "config_shop:app")
    path = write("[worker]\nconcurrency = 4")
    assert readers[0]().worker.concurrency == 4, "one that has come is read"
    cli.fine("worker", "config_shop:app")
    path.unlink()
    with pytest.raises(ConfigError, match=r"^late\.toml: No such file or directory$"):
        readers[1]()


def test_the_same_for_late_serve(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, config.WorkerConfig]] = []
    monkeypatch.setattr(
        "late.api.server.run",
        lambda app, listen, *, read, **_: started.append((listen, read().worker)) or 0,
    )

    def both(*flags: str) -> tuple[Any, Any]:
        cli.fine("serve", "config_shop:app", *flags)
        rows = shown(cli, "serve", "config_shop:app", *flags)
        port, health = (
            rows["serve", "http_port"],
            next(v for (_, name), v in rows.items() if name == "health_port"),
        )
        assert (port[0], health[0]) == (started[-1][0].http_port, started[-1][1].health_port)
        return port, health

    assert both()[0] == (7280, "default", None)
    write("[worker]\nhealth_port = 1\nlog_level = 'ERROR'\n[serve]\nhttp_port = 7001")
    assert both() == (
        (7001, "file", "late.toml [serve] http_port"),
        (1, "file", "late.toml [worker] health_port"),
    )
    assert shown(cli, "serve")["serve", "log_level"][2] == "late.toml [worker] log_level"
    write("[worker]\nhealth_port = 1\n[serve]\nhttp_port = 7001\nhealth_port = 2")
    assert both()[1] == (2, "file", "late.toml [serve] health_port")
    assert shown(cli)["worker", "health_port"][0] == 1
    assert shown(cli)["serve", "health_port"][0] == 2
    monkeypatch.setenv("LATE_HEALTH_PORT", "3")
    monkeypatch.setenv("LATE_SERVE_HTTP_PORT", "7002")
    assert both() == (
        (7002, "environment", "LATE_SERVE_HTTP_PORT"),
        (3, "environment", "LATE_HEALTH_PORT"),
    )
    monkeypatch.setenv("LATE_SERVE_HEALTH_PORT", "4")
    assert both()[1] == (4, "environment", "LATE_SERVE_HEALTH_PORT")
    assert both("--http-port", "7003")[0] == (7003, "flag", "--http-port")


def test_the_url_of_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "or url in late.toml" in cli.refused("status")
    write(f"url = 'sqlite:///{tmp_path}/from_file.db'")
    cli.fine("migrate")
    assert (tmp_path / "from_file.db").exists()
    assert shown(cli)["", "url"][1:] == ("file", "late.toml url")
    monkeypatch.setenv("LATE_URL", f"sqlite:///{tmp_path}/from_variable.db")
    cli.fine("migrate")
    assert (tmp_path / "from_variable.db").exists()
    assert shown(cli)["", "url"][1:] == ("environment", "LATE_URL")


def test_the_replica_that_commands_ask(cli: Cli, tmp_path: Path) -> None:
    write(f"url = 'sqlite:///{tmp_path}/a.db'\n[worker]\nread_url = 'postgresql://h/d'")
    cli.fine("migrate")
    assert "read_url=postgresql://h/d: expected a replica" in cli("status").err


def test_a_misspelt_variable_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LATE_LEASE_TTL", "LATE_SERVE_AUHT", "LATE_ZEBRA", "LATE_SERVE_HEALTH_PORT"):
        monkeypatch.setenv(name, "9")
    # Kubernetes makes these for a service that is called late-serve.
    monkeypatch.setenv("LATE_SERVE_PORT", "tcp://10.0.0.1:7280")
    monkeypatch.setenv("LATE_SERVE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("LATE_SERVE_PORT_7280_TCP_ADDR", "10.0.0.1")
    assert cli.fine("config", "show").err.splitlines() == [
        "warning: LATE_LEASE_TTL is no variable of late and is not read; did you mean "
        "LATE_LEASE_TTL_S?",
        "warning: LATE_SERVE_AUHT is no variable of late and is not read; did you mean "
        "LATE_SERVE_AUTH?",
    ]


def test_a_url_of_another_database_than_the_app_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    other = environment.other_database
    told = other("sqlite:///shop.db", "postgresql://late:secret@db/shop")
    assert told is not None
    assert "names postgresql://late:***@db/shop, and the app sqlite:///shop.db." in told
    assert other("sqlite:///shop.db", f"sqlite:///{tmp_path}/shop.db") is None
    assert other("sqlite:///shop.db", None) is None
    # The app may go through a pooler.
    assert other("postgresql+psycopg://w@pool:6432/shop", "postgresql://o:x@db/shop") is None


def test_every_variable_that_the_page_names_is_known() -> None:
    named = set(re.findall(r"`(LATE_[A-Z_]+)`", settings_doc.page()))
    assert named <= environment.known()


def test_show_wants_a_command_that_has_settings(cli: Cli) -> None:
    said = "'status' has no settings; these have: worker, serve, autoscale run"
    assert said in cli.refused("config", "show", "status")
    assert "no such option" in cli.refused("config", "show", "worker", "a:b", "--concurency", "3")
    assert shown(cli, "autoscale", "run")["autoscaler", "every"] == (30, "default", None)


# ---------------------------------------------------------------------- the page


def test_the_page_is_made_from_the_settings() -> None:
    assert settings_doc.PAGE.read_text() == settings_doc.page(), "python scripts/settings_doc.py"


def test_the_page_names_every_variable() -> None:
    inner = {"LATE_PROCESS", "LATE_PARENT_FD", "LATE_SIZE", "LATE_SIZE_BEFORE", "LATE_"}
    found = {
        name
        for path in (ROOT / "late").rglob("*.py")
        for name in re.findall(r'"(LATE_[A-Z_]*)"', path.read_text())
        if "bench" not in path.parts
    }
    prefixes = set(catalogue.VARIABLES.values())
    page = settings_doc.page()
    assert not [name for name in found - inner - prefixes if f"`{name}`" not in page]


def test_every_setting_says_what_it_is() -> None:
    meanings = settings_doc.docstrings(config.WorkerConfig)
    for settings in catalogue.sections().values():
        assert all(each.text or meanings.get(each.name) for each in settings.values())
    assert set(config.kinds()) >= config.LIVE
