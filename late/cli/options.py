"""Options that several commands share, and the functions that turn their texts into values."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from late.cli.config import configuration
from late.errors import ConfigError
from late.model.time_text import WHEN as WHEN
from late.model.time_text import duration_us as duration_us
from late.model.time_text import instant as instant
from late.model.time_text import moment_us as moment_us

if TYPE_CHECKING:
    from late.control import Control
    from late.control.replica import ReplicaReads
    from late.control.status.replication import Freshness

T = TypeVar("T")

UrlArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="sqlite:///PATH, postgresql://USER@HOST/DATABASE or spanner+spanner:///projects/…",
        show_default=False,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        metavar="URL",
        help="The database; else $LATE_URL, else url in late.toml.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
Payload = Annotated[
    bool, typer.Option("--payload", help="Include payloads, which may be confidential.")
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="T",
        help="A past moment: 2026-11-28T07:00Z, or an age such as 2h.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
TaskId = Annotated[str, typer.Argument(metavar="TASK_ID", show_default=False)]
Group = Annotated[str | None, typer.Option("--group", help="Only this consumer group.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
TlsCert = Annotated[str | None, typer.Option(metavar="FILE", help="Certificate, PEM.")]
TlsKey = Annotated[str | None, typer.Option(metavar="FILE", help="Its key, PEM.")]


def shared(
    make: Callable[..., Any], name: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give commands the options of `make`, whose result they get as the argument `name`."""
    options = inspect.signature(make, eval_str=True).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        @functools.wraps(command)
        def run(**given: Any) -> None:
            made = make(**{option: given.pop(option) for option in options})
            command(**{name: made}, **given)

        after = [parameter for parameter in own.values() if parameter.name != name]
        # What has to be given comes first, as in any signature.
        ours = sorted([*options.values(), *after], key=lambda each: each.default is not each.empty)
        run.__signature__ = inspect.Signature(ours)  # type: ignore[attr-defined]
        run.__annotations__ = {}  # typer reads the signature where there are none
        return run

    return decorate


def url_of(*given: str | None) -> str:
    """Return the first URL that was given, else that of the environment, else that of the file.

    Raises:
        ConfigError: none, or two different ones.
    """
    chosen = {url for url in given if url}
    if len(chosen) > 1:
        raise ConfigError("two different URLs: give the argument or --url, not both")
    url = named_url(*chosen)
    if not url:
        raise ConfigError("no database: give a URL, --url, or set LATE_URL, or url in late.toml")
    return url


def named_url(*given: str | None) -> str | None:
    """Return the first URL that was given, else that of the environment, else that of the file."""
    named = (*given, os.environ.get("LATE_URL", "").strip())
    return next((url for url in named if url), None) or configuration.url()


def control_of(*given: str | None) -> Control:
    """Make a `Control` of that database. It does not connect yet."""
    url = url_of(*given)
    from late.control import Control

    return Control(url)


def watching(*given: str | None) -> Control:
    """Make a `Control` that judges `LAGGING` as a worker with this environment does.

    Only commands that show it use this: no other command may fail by a worker's setting.

    Raises:
        ConfigError: LATE_LAG_ALARM_S, or another setting, cannot be read.
    """
    url = url_of(*given)
    from late.cli.config import file
    from late.control import Control

    alarm_s = configuration.settings(file.found(), "worker", {}).lag_alarm_s
    return Control(url, alarm_s=alarm_s)


def freshness(control: Control) -> Freshness | None:
    """Ask the replica of LATE_READ_URL once, how near it is; None without one.

    Raises:
        ConfigError: it is no replica of this database, or a setting cannot be read.
    """
    reads = _replica_reads(control)
    if reads is None:
        return None
    with closing(reads):
        reads.check()
        return reads.freshness


def near_read(control: Control, work: Callable[[Control], T]) -> tuple[T, str]:
    """Return `work` of the replica of LATE_READ_URL while that is near enough, else of `control`.

    And the line that says which of them it was; empty without LATE_READ_URL. A URL that is no
    replica of this database is only told: the answer of the database is right.
    """
    try:
        reads = _replica_reads(control)
    except ConfigError as error:
        return work(control), f"answered by the database: {error}"
    if reads is None:
        return work(control), ""
    with closing(reads):
        try:
            reads.check()
        except ConfigError as error:
            return work(control), f"answered by the database: {error}"
        found = reads.read(work)
        return found, f"answered {reads.freshness} ({reads.freshness.where})"


def near_source(control: Control) -> tuple[tuple[str, float] | None, str]:
    """Return the URL of LATE_READ_URL and the age of reads there, if it is near enough.

    And the line that says why not; empty without LATE_READ_URL.
    """
    try:
        reads = _replica_reads(control)
        if reads is None:
            return None, ""
        with closing(reads):
            near, _ = reads.check()
            if near:
                return (reads.url, reads.stale_s), ""
            return None, f"read {reads.freshness} ({reads.freshness.where})"
    except ConfigError as error:
        return None, f"read from the database: {error}"


def _replica_reads(control: Control) -> ReplicaReads | None:
    from late.cli.config import file
    from late.control.replica import ReplicaReads

    settings = configuration.settings(file.found(), "worker", {})
    if settings.read_url is None:
        return None
    return ReplicaReads(
        control, settings.read_url, max_lag_s=settings.read_lag_s, alarm_s=settings.lag_alarm_s
    )


def asked(question: str, effect: str) -> None:
    """Ask at a terminal whether to go on; `typer.Abort` if not.

    Args:
        effect: what would be done, for the message where nobody can answer.

    Raises:
        ConfigError: nobody can answer. A script that goes on by itself must say `--yes`.
    """
    if not sys.stdin.isatty():
        raise ConfigError(f"{effect}: give --yes")
    typer.confirm(question, abort=True)


def json_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigError: not JSON, or not an object. The text is not repeated: it is a payload.
    """
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be a JSON object, got {type(value).__name__}")
    return value


def pairs(texts: list[str], what: str) -> dict[str, str]:
    """Read `KEY=VALUE` texts as a mapping.

    Raises:
        ConfigError: no `=`, or a key twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{what} {text[:64]!r}: expected KEY=VALUE")
        if key in found:
            raise ConfigError(f"{what} {key[:64]!r} is given twice")
        found[key] = value
    return found
