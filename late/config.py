"""The settings of a worker: one flat struct, checked when it is made and never later.

Every bound is part of the field's type, so that the check, the message and this file cannot
disagree. A setting comes from a keyword, else from the environment (`LATE_` and the field's name
in capitals), else from a file that the caller has read, else from the default.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from late.errors import ConfigError
from late.model.validation import NAME_RULE, is_name

ENV_PREFIX = "LATE_"

_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Seconds = Annotated[float, Meta(gt=0, le=366 * 86_400)]
_Wait = Annotated[float, Meta(ge=0, le=86_400)]
_Text = Annotated[str, Meta(max_length=8_192)]

_MEMBER = re.compile(r"[A-Za-z0-9:_](?:[A-Za-z0-9._:-]{0,126}[A-Za-z0-9:_])?\Z")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?\Z")

LIVE = frozenset(
    {
        "exit_when_stuck",
        "grace_s",
        "journal_detail_s",
        "journal_keep_s",
        "journal_minute_s",
        "lag_alarm_s",
        "look_every_s",
    }
)
"""The settings that a worker takes anew while it runs (`late/worker/reload.py`)."""

BEAT_MAX_S = 1.0
"""The longest default time between two heartbeats: the time in which a worker that joins or leaves
is seen. For a death they come earlier, see `Heartbeat`."""


class Members(msgspec.Struct, frozen=True):
    """The workers that may own shards, if they also send heartbeats."""

    source: Literal["database", "static", "dns"] = "database"
    names: tuple[str, ...] = ()
    """The list of members for `static`; the one name to look up for `dns`; empty otherwise."""

    @classmethod
    def parse(cls, text: str) -> Members:
        """Read `database`, `static:a,b,c` or `dns:name`.

        Raises:
            ConfigError: the text is anything else; the message names the valid forms.
        """
        label = f"membership={text[:80]!r}"
        source, colon, rest = text.strip().partition(":")
        if source == "database" and not colon:
            return cls()
        if source == "static":
            names = [part.strip() for part in rest.split(",")]
            for name in names:
                if not _is_member(name):
                    raise ConfigError(
                        f"{label}: {name[:80]!r} is no member's name; write static:a,b,c with the "
                        "host names or addresses, without ports, that the workers have as "
                        "LATE_MEMBER"
                    )
            named = [member_name(name) for name in names]
            if len(set(named)) < len(named):
                raise ConfigError(f"{label}: a name is on the list twice")
            return cls("static", tuple(named))
        if source == "dns":
            if not _HOST.match(rest.strip()):
                raise ConfigError(
                    f"{label}: expected dns:NAME, the name of a host or of a headless service, "
                    "without a port or a scheme"
                )
            return cls("dns", (rest.strip(),))
        raise ConfigError(f"{label}: expected database, static:a,b,c or dns:name")


def _is_member(text: str) -> bool:
    """Tell whether `text` is a host's name or an address, without a port.

    A colon may only be part of an IPv6 address. A name with a port would match no worker, and then
    no worker would own anything.
    """
    if not _MEMBER.match(text):
        return False
    try:
        return ":" not in text or bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def member_name(text: str) -> str:
    """Return a host's name or address in its canonical form, so that two can be compared."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text.lower().rstrip(".")


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one worker process. Names of seconds end in `_s`; their values are floats.

    Raises:
        ConfigError: a value has the wrong type, is out of its bounds or contradicts another one;
            the message names the field and the value.
    """

    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 16
    """Attempts that run at the same time."""
    process_workers: Annotated[int, Meta(ge=1, le=256)] = 2
    """Child processes for handlers with `process=True`. Where the app has such a task they start
    with the worker, and each imports the app."""
    process_memory_mb: Annotated[int, Meta(ge=32, le=1_000_000)] | None = None
    """With `--processes`: a worker whose memory is above this many MB, together with its child
    processes, is replaced as at SIGHUP. It is for handlers that leak. By default none is."""
    capacity: Annotated[float, Meta(gt=0, le=1_000)] = 1.0
    """This worker's share of the shards, relative to its peers."""
    membership: _Text = "database"
    """The list of possible owners: `database` (every live worker), `static:a,b,c` or `dns:name`."""
    member: _Text | None = None
    """This worker's name on that list. The default is the host's name, and with `dns` the address
    from which this host reaches others."""
    lanes: _Text | None = None
    """The lanes whose shards this worker may own, with commas between their names. By default it
    serves all lanes."""

    page_size: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    """The most records that one read takes from one shard."""
    window: Annotated[int, Meta(ge=1, le=10_000)] = 2000
    """The most records of one shard that are read and not yet covered by the checkpoint. At this
    bound the tailer stops reading; no record is dropped."""
    poll_max_s: Annotated[float, Meta(ge=0.001, le=3_600)] | None = None
    """The longest pause between two reads of an idle log. The default is the store's: 1 s, and 2 s
    on Spanner. The store sets the shortest, too. While the database tells of commits it may be five
    times as long, up to five seconds."""

    horizon_s: Annotated[float, Meta(ge=0.1, le=3_600)] = 10.0
    """Tasks that are due within this time are kept in memory, later ones in the timer table."""
    timers_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """The most timers of one shard that are kept in memory."""

    lease_ttl_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 5.0
    """A worker loses its shards when it has sent no heartbeat for this long. Heartbeats have a
    thread of their own: a worker whose event loop is blocked keeps its shards for `stall_s`."""
    heartbeat_s: _Seconds | None = None
    """The time between two heartbeats. The default is a third of `lease_ttl_s`, but at most
    a second."""
    lease_margin_s: _Wait | None = None
    """The time before the end of its lease at which a worker stops starting tasks. The default is a
    tenth of `lease_ttl_s`."""
    standby_s: Annotated[float, Meta(ge=0, le=3_600)] = 0.0
    """The longest time that a new worker owns nothing and waits for one that leaves, to take over
    its shards and no others. It is for deployments that start each new worker before they stop an
    old one. By default it joins at once."""
    takeovers_max: Annotated[int, Meta(ge=1, le=4096)] = 4
    """The most shards that are acquired at the same time: each begins with a cold read of its
    log."""

    stall_s: _Seconds = 60.0
    """A worker that makes no progress with one of its duties for this long releases its shards and
    fails its health check. It must be longer than any handler blocks the event loop."""
    look_every_s: Annotated[float, Meta(ge=0, le=86_400)] = 15.0
    """The time between two readings of the whole database for metrics, which one worker makes for
    each group; 0 makes none. There are none without a `health_port` or `late serve`."""
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """The port of `/metrics`, `/livez` and `/readyz`. By default there is none; 0 takes any free
    port."""
    health_fd: Annotated[int, Meta(ge=0)] | None = None
    """The number of an open listening socket, which this process inherited, for the health check in
    place of that port; `late worker --processes` and systemd give one."""
    health_host: _Text = "127.0.0.1"
    """The address of that port. The default is for this machine only; use `0.0.0.0` or `::` if a
    probe comes from another machine."""

    waking: Literal["auto", "on", "off"] = "auto"
    """`auto`: a worker that sleeps is told of commits where that is safe. `on`: also on a
    PostgreSQL that allows prepared transactions; those that enqueue then set `late.wake` to `off`.
    `off`: tasks are found by polling."""
    listen_url: _Text | None = None
    """The address at which a worker LISTENs on PostgreSQL. The default is that of the database; it
    is for workers behind a PgBouncer in transaction mode."""
    read_url: _Text | None = None
    """The address of a streaming replica of PostgreSQL, from which the page of `late serve` and
    `late verify` read while it is near enough; on Spanner and CockroachDB that of the database
    itself, whose replica near by then answers. The default is the database."""
    read_lag_s: Annotated[float, Meta(gt=0, le=60)] = 2.0
    """The longest time by which those reads may be late. On Spanner they are late by that time, on
    CockroachDB by some five seconds."""
    wake_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """The port of wake-ups by datagram (`late/notify/notifier.py`). By default there is none; 0
    takes any free port."""
    wake_host: _Text = "127.0.0.1"
    """The address of that port. The default is for this machine only; any other address needs
    `LATE_WAKE_SECRET`."""

    settle_delay_s: Annotated[float, Meta(ge=0, le=60)] = 0.400
    """The longest time that an outcome waits for others that share its transaction, if nobody waits
    for it. One that somebody waits for (a result, a retry, a command) is recorded within 10 ms."""
    settle_batch: _Count = 1000
    """So many outcomes are settled at once, without a further wait; a quarter of them wait no
    longer than one that somebody waits for."""

    otel: Annotated[int, Meta(ge=0, le=1)] = 0
    """With 1, metrics and traces are sent by OpenTelemetry (OTLP), to the address that its own
    variables name. It needs `late-queue[otel]`."""
    otel_every_s: _Seconds = 15.0
    """The time between two sendings of metrics."""

    wait_for_database_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0
    """The time that a worker, or `late serve` in any role, waits at its start for a database that
    does not answer, before it fails. It is not ready meanwhile."""
    grace_s: _Wait = 30.0
    """The time that running tasks have to finish at a stop, before they are interrupted."""
    exit_when_stuck: Annotated[int, Meta(ge=0, le=1)] = 0
    """With 1, the worker stops with exit code 75 when handlers that cannot be ended have held all
    slots, or all that one task may hold, for `stall_s`. Whoever supervises it starts it again."""
    prune_every_s: _Seconds = 15.0
    """The time between two rounds of maintenance."""
    lag_alarm_s: Annotated[float, Meta(ge=0, le=366 * 86_400)] = 600.0
    """There is an alarm if the oldest task that a consumer group has not read is older than this; 0
    raises none."""
    journal_keep_s: Annotated[float, Meta(ge=0, le=3_660 * 86_400)] = 7 * 86_400.0
    """The time that settlements and the histories of tasks are kept. The last settlement of each
    shard is kept for ever."""
    journal_detail_s: Annotated[float, Meta(ge=0, le=3_660 * 86_400)] = 3_600.0
    """The time that each settlement is a row of its own. After it those of a minute are one, with
    the sums of their usage; in a quiet shard those of as many minutes of an hour as 500 settlements
    take."""
    journal_minute_s: Annotated[float, Meta(ge=0, le=3_660 * 86_400)] = 86_400.0
    """The time after which those of an hour are one."""

    def __post_init__(self) -> None:
        for name, kind in kinds().items():
            checked(name, getattr(self, name), kind)
        Members.parse(self.membership)
        if self.member is not None and not _is_member(self.member):
            raise ConfigError(
                f"member={self.member[:80]!r}: expected the name or address of this host, without "
                "a port, as the list of members has it"
            )
        for name in self.lane_names:
            if not is_name(name):
                raise ConfigError(f"lanes: {name[:80]!r} is no name of a lane: {NAME_RULE}")
        if self.page_size > self.window:
            raise ConfigError(
                f"page_size={self.page_size} is over window={self.window}: "
                "a page must fit into the window"
            )
        if self.margin_s + self.beat_every_s >= self.lease_ttl_s:
            raise ConfigError(
                f"heartbeat_s={self.beat_every_s:g} + lease_margin_s={self.margin_s:g} must be "
                f"below lease_ttl_s={self.lease_ttl_s:g}: no heartbeat could arrive in time"
            )
        late_s = self.read_lag_s + self.beat_every_s
        on_replica = (self.read_url or "").startswith("postgresql")
        if on_replica and late_s >= self.lease_ttl_s:
            raise ConfigError(
                f"read_lag_s={self.read_lag_s:g} + heartbeat_s={self.beat_every_s:g} must be below "
                f"lease_ttl_s={self.lease_ttl_s:g}: on a replica live workers would look dead"
            )

    @property
    def lane_names(self) -> tuple[str, ...]:
        """The names in `lanes`, ascending; empty: all lanes."""
        return tuple(sorted({*(self.lanes or "").replace(",", " ").split()}))

    @property
    def beat_every_s(self) -> float:
        """`heartbeat_s`, or its default, which depends on `lease_ttl_s`."""
        if self.heartbeat_s is None:
            return min(self.lease_ttl_s / 3, BEAT_MAX_S)
        return self.heartbeat_s

    @property
    def margin_s(self) -> float:
        """`lease_margin_s`, or its default, which depends on `lease_ttl_s`."""
        return self.lease_ttl_s / 10 if self.lease_margin_s is None else self.lease_margin_s


def load(
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> WorkerConfig:
    """Read the settings from keywords, else from the environment, else from `file`, else from the
    defaults.

    A keyword that is None counts as not given, so that unset options of a command line can be
    passed on as they are. An empty variable counts as not set. Variables with other names are
    ignored: the rest of the program uses `LATE_` too.

    Args:
        file: values by name.

    Raises:
        ConfigError: see `WorkerConfig`; or a keyword does not name a setting.
    """
    environ = os.environ if environ is None else environ
    known = kinds()
    for name in overrides:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(known)}"
            raise ConfigError(f"no such setting: {name}{hint}")
    values: dict[str, Any] = {}
    for name, kind in known.items():
        match origin(name, environ, file or {}, overrides):
            case "flag":
                values[name] = overrides[name]
            case "environment":
                variable = variable_of(name)
                values[name] = checked(variable, environ[variable].strip(), kind, strict=False)
            case "file":
                values[name] = (file or {})[name]
    return WorkerConfig(**values)


Origin = Literal["flag", "environment", "file", "default"]


def origin(
    name: str, environ: Mapping[str, str], file: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Origin:
    """Return the source that decides a setting: the first that gives it."""
    if overrides.get(name) is not None:
        return "flag"
    if environ.get(variable_of(name), "").strip():
        return "environment"
    return "file" if name in file else "default"


def variable_of(name: str) -> str:
    """Return the variable of a setting."""
    return ENV_PREFIX + name.upper()


@functools.cache
def kinds() -> Mapping[str, Any]:
    """Return field name -> type with its bounds, in the order of the struct."""
    hints = get_type_hints(WorkerConfig, include_extras=True)
    return {name: hints[name] for name in WorkerConfig.__struct_fields__}


def checked(label: str, value: Any, kind: Any, *, strict: bool = True) -> Any:
    """Return `value` as `kind`; a text too, if not `strict`.

    Raises:
        ConfigError: it does not fit; the message begins with `label`.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason = str(error).replace("Expected", "expected").replace("`", "")
        raise ConfigError(f"{label}={value!r}: {reason}") from None


def margin_s(settings: WorkerConfig, least_s: float) -> float:
    """Return the seconds before the end of its lease at which a worker stops starting tasks.

    Args:
        least_s: the largest difference between the clocks of the database. The result is the
            setting, but no less than this.

    Raises:
        ConfigError: with that margin no heartbeat could arrive in time.
    """
    found_s = max(settings.margin_s, least_s)
    if found_s + settings.beat_every_s >= settings.lease_ttl_s:
        raise ConfigError(
            f"on this database a worker stops {found_s:g} s before its lease is over: "
            f"lease_ttl_s={settings.lease_ttl_s:g} is too short for that"
        )
    return found_s


@functools.cache
def package_version() -> str:
    """Return the version of the installed `late-queue`; `0` in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("late-queue")
    except PackageNotFoundError:
        return "0"
