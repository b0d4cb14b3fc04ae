"""`late worker` and `late enqueue`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from late.cli import options, output
from late.cli.app_loader import emptiness, load_app, without_consumers
from late.cli.config import configuration
from late.errors import ConfigError, UnknownTask

if TYPE_CHECKING:
    from late.app.app import App
    from late.worker.reload import Reading

TEXTS = (
    "membership", "member", "lanes", "health_host", "wake_host", "waking", "listen_url", "read_url"
)  # fmt: skip
"""The settings whose values are texts."""

PROCESSES_MAX = 1_024

AppArgument = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Such as shop.tasks:app.", show_default=False)
]

GroupsOption = Annotated[
    list[str] | None, typer.Option(help="Consumer group; may be repeated. Default: the app's.")
]
LanesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Own shards of these lanes alone, with commas between them. Default: all lanes.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting of the worker; may be repeated."
    ),
]
HealthPortOption = Annotated[
    int | None,
    typer.Option(
        help="Serve /metrics, /livez and /readyz on this port of 127.0.0.1.", min=0, max=65_535
    ),
]
WakePortOption = Annotated[
    int | None,
    typer.Option(
        help="Hear on this UDP port of 127.0.0.1 that something was committed.", min=0, max=65_535
    ),
]
WaitForDatabaseOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Wait so long at the start for a database that does not answer (300); 0: fail.",
        min=0,
    ),
]
ProcessesOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        envvar="LATE_PROCESSES",
        help="Run so many workers, and watch them; auto: one for each processor.",
    ),
]
ReloadOption = Annotated[
    bool,
    typer.Option(
        "--reload", help="For development: start again when Python files in this folder change."
    ),
]
LogLevelOption = Annotated[
    str, typer.Option(envvar="LATE_LOG_LEVEL", help="DEBUG, INFO, WARNING or ERROR.")
]
LogJsonOption = Annotated[
    bool, typer.Option("--log-json", envvar="LATE_LOG_JSON", help="Log lines as JSON.")
]


def worker(
    context: typer.Context,
    target: AppArgument,
    config: configuration.Config = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Attempts that run at the same time.", min=1, max=10_000)
    ] = None,
    group: GroupsOption = None,
    lanes: LanesOption = None,
    set_: SetOption = None,
    health_port: HealthPortOption = None,
    wake_port: WakePortOption = None,
    wait_for_database: WaitForDatabaseOption = None,
    exit_when_stuck: Annotated[
        bool,
        typer.Option(
            "--exit-when-stuck",
            help="Stop with exit code 75 when handlers that cannot be ended hold the slots.",
        ),
    ] = False,
    processes: ProcessesOption = None,
    reload: ReloadOption = False,
    log_level: LogLevelOption = "INFO",
    log_json: LogJsonOption = False,
) -> None:
    """Run tasks until SIGTERM or SIGINT; a second one stops at once.

    A stop takes in nothing more, lets running tasks finish, records them, and hands the shards
    over. SIGHUP reads the settings anew. They also come from variables such as LATE_CONCURRENCY and
    from late.toml: late config show. Logs go to stderr, unless the service's module has set up
    logging itself.
    """
    from late.supervisor import child

    settings = settings_of(set_ or [], group)
    own = {
        "concurrency": concurrency,
        "lanes": lanes,
        "health_port": health_port,
        "wake_port": wake_port,
        "wait_for_database_s": wait_for_database,
        "exit_when_stuck": int(exit_when_stuck) or None,
    }
    settings |= {name: value for name, value in own.items() if value is not None}
    read = reader(context, settings)
    if (processes is not None or reload) and child.number_of(os.environ) is None:
        count = "1" if processes is None else processes
        raise typer.Exit(supervise(count, read, log_level, json=log_json, reload=reload))
    settings |= child.settings()
    read = reader(context, settings)
    child.follow_parent()
    app = load_app(target)
    end_logging = show_log(log_level, json=log_json)
    number = child.number_of(os.environ)
    if number is None:
        configuration.warn(app.url)
    elif number == 1:  # The parent has no app. It has said the rest.
        configuration.warn_of_database(app.url)
    for warning in filter(None, [emptiness(app, target), without_consumers(app, target)]):
        logging.getLogger("late.cli").warning(warning)
    if number is None and read().worker.process_memory_mb is not None:
        logging.getLogger("late.cli").warning(
            "process_memory_mb does nothing here: it is for --processes N, which may be 1"
        )
    from late.worker.worker import run

    try:
        raise typer.Exit(run(app, target=target, groups=settings.get("groups"), read=read))
    finally:
        end_logging()


def reader(context: typer.Context, settings: dict[str, Any]) -> Callable[[], Reading]:
    """Return what reads the settings of a worker, now and at SIGHUP."""
    flags = {name: value for name, value in settings.items() if name != "groups"}
    return configuration.reader(context, flags)


def supervise(
    processes: str, read: Callable[[], Reading], level: str, *, json: bool, reload: bool
) -> int:
    """Run so many workers as children of this process, each with the same command line.

    Raises:
        ConfigError: wrong settings, or no such number of processes.
    """
    from late.observability import logs
    from late.supervisor import run as supervising
    from late.supervisor.processors import processors

    count = processors() if processes == "auto" else int(processes) if processes.isdecimal() else 0
    if not 1 <= count <= PROCESSES_MAX:
        raise ConfigError(f"--processes {processes[:32]!r}: auto, or 1 to {PROCESSES_MAX}")
    read()  # Wrong settings are told before anything else.
    check_level(level)
    logs.configure(level, json=json)
    configuration.warn()
    command = [sys.executable, "-m", "late", *sys.argv[1:]]
    return supervising.run(command, count, read, Path.cwd() if reload else None)


def show_log(level: str, *, json: bool) -> Callable[[], None]:
    """Show the worker's events, and return a function that ends it."""
    from late import events
    from late.observability import logs as log
    from late.supervisor import child

    check_level(level)
    if not logging.getLogger().handlers and not logging.getLogger("late").handlers:
        log.configure(level, json=json, process=child.number_of(os.environ))
    return log.log_events(events.default)


def check_level(level: str) -> None:
    """Refuse what names no level.

    Raises:
        ConfigError: see above.
    """
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ConfigError(f"--log-level {level[:32]!r}: DEBUG, INFO, WARNING or ERROR")


def settings_of(texts: list[str], groups: list[str] | None) -> dict[str, Any]:
    """Return `--set` and `--group` as keywords of a worker's `run`."""
    found = _settings(texts)
    if groups:
        found["groups"] = tuple(dict.fromkeys(groups))
    return found


def _settings(texts: list[str]) -> dict[str, Any]:
    """Read `--set` pairs as numbers, which nearly all settings are.

    Raises:
        ConfigError: not KEY=VALUE, or no number.
    """
    found: dict[str, Any] = {}
    for key, text in options.pairs(texts, "--set").items():
        if key in TEXTS:
            found[key] = text
            continue
        try:
            found[key] = float(text) if "." in text or key.endswith("_s") else int(text)
        except ValueError:
            raise ConfigError(f"--set {key}={text[:64]!r}: expected a number") from None
    return found


def enqueue(
    name: Annotated[str, typer.Argument(help="The task's name.", show_default=False)],
    target: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="Check name and arguments by this app."),
    ] = None,
    url_option: options.Url = None,
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help="Arguments by name, a JSON object.")
    ] = "{}",
    queue: Annotated[
        str | None, typer.Option(help="Queue, when there is no --app to say it.")
    ] = None,
    delay: Annotated[str | None, typer.Option(metavar="TIME", help="Such as 90s or 2h.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Such as 2026-05-01T12:00:00Z.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME|WHEN", help="Do not start after that.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="-100..100, higher first.")] = None,
    lane: Annotated[str | None, typer.Option(help="The range of shards it goes to.")] = None,
    ordering_key: Annotated[
        str | None, typer.Option(help="Tasks of one key run in order, one at a time.")
    ] = None,
    limit_key: Annotated[
        str | None, typer.Option(help="The tenant for key_concurrency and key_rate of the queue.")
    ] = None,
    unique_key: Annotated[str | None, typer.Option(help="One unfinished task per key.")] = None,
    unique_for: Annotated[
        str | None, typer.Option(metavar="TIME", help="The key stays taken for so long at least.")
    ] = None,
    on_conflict: Annotated[
        str | None, typer.Option(help="A taken key: existing (default), reject or replace.")
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With replace: the longest wait since the first call."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="May be repeated.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Enqueue one task in a transaction of its own, and print its id.

    With --app the task must exist and the arguments must fit its signature. With --url alone
    neither is checked: a worker that knows no such task parks it and asks again later. The
    database is that of --url, else of LATE_URL, else of late.toml, else the app's own.
    """
    arguments = options.json_object(args, "--args")
    wanted: dict[str, Any] = {
        "delay": _seconds(delay, "--delay"),
        "at": None if at is None else options.instant(at, "--at"),
        "expires": None if expires is None else _expires(expires),
        "priority": priority,
        "lane": lane,
        "ordering_key": ordering_key,
        "limit_key": limit_key,
        "unique_key": unique_key,
        "unique_for": _seconds(unique_for, "--unique-for"),
        "on_conflict": on_conflict,
        "max_wait": _seconds(max_wait, "--max-wait"),
        "headers": options.pairs(header, "--header") if header else None,
    }
    given = {key: value for key, value in wanted.items() if value is not None}
    task_id = _enqueue(target, url_option, name, queue, arguments, given)
    output.line(json, {"task_id": task_id}, task_id)


def _seconds(text: str | None, option: str) -> float | None:
    return None if text is None else options.duration_us(text, option) / 1_000_000


def _expires(text: str) -> Any:
    return options.instant(text, "--expires") if "T" in text else _seconds(text, "--expires")


def _enqueue(
    target: str | None,
    url: str | None,
    name: str,
    queue: str | None,
    arguments: dict[str, Any],
    given: dict[str, Any],
) -> str:
    from late.app.backpressure import look
    from late.control import Control
    from late.notify.notifier import wake
    from late.schema.engine import make_engine, write

    app = nameless(options.url_of(url)) if target is None else load_app(target)
    if target is not None and name not in app.tasks:
        known = ", ".join(sorted(app.tasks)[:20]) or "none"
        raise UnknownTask(f"{target} has no task {name[:128]!r}; known: {known}")
    call = app.call(name, arguments, queue=queue, **given)
    # What is asked for here and now, else what the service's code says.
    where = options.named_url(url) or app.url
    with Control(where) as control:
        look(app, control)  # a queue that is closed, or full, is so for operators too
    engine = make_engine(where)
    try:
        task_id = write(engine, lambda tx: app.enqueue(tx, call))
    finally:
        engine.dispose()
    wake(task_id)
    return task_id


def nameless(url: str) -> App:
    """Make an app with no tasks and as many shards as the database says.

    An ordering key must lead to the shard that the service's own app would choose.
    """
    from late.app.app import App
    from late.control import Control

    with Control(url) as control:
        shards = [lane.shards for lane in control.lanes.all() if lane.name == "default"]
    return App(url, shards=shards[0] if shards else 1, strict=False)
