"""The settings of a worker: one flat struct, checked when it is made and never later.

Every bound is part of the field's type, so that the check, the message and this page cannot
disagree. A setting comes from a keyword, else from the environment (`LATE_` + the field's name in
capitals), else from the default.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from late.errors import ConfigError

ENV_PREFIX = "LATE_"

_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Seconds = Annotated[float, Meta(gt=0, le=366 * 86_400)]
_Wait = Annotated[float, Meta(ge=0, le=86_400)]
_Text = Annotated[str, Meta(max_length=8_192)]

_MEMBER = re.compile(r"[A-Za-z0-9:_](?:[A-Za-z0-9._:-]{0,126}[A-Za-z0-9:_])?\Z")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?\Z")

BEAT_MAX_S = 0.75
"""A peer sees a death at its first heartbeat after the time to live: within a second, with this."""


class Members(msgspec.Struct, frozen=True):
    """The workers that may own shards, among those whose heartbeat lives."""

    source: Literal["database", "static", "dns"] = "database"
    names: tuple[str, ...] = ()
    """The list, for `static`; the one name to look up, for `dns`."""

    @classmethod
    def parse(cls, text: str) -> Members:
        """`database`, `static:a,b,c` or `dns:name`.

        Raises:
            ConfigError: anything else; the message says what it must look like.
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
    """A host's name or an address. A colon is of an IPv6 address: with a port, a name would match
    no worker, and all of them would own nothing."""
    if not _MEMBER.match(text):
        return False
    try:
        return ":" not in text or bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def member_name(text: str) -> str:
    """The one way to write a host's name or address, so that lists and workers can be compared."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text.lower().rstrip(".")


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one worker process. Seconds are floats and end in `_s`.

    Raises:
        ConfigError: a value is of the wrong type, out of its bounds or at odds with another one;
            the message names field and value.
    """

    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 16
    """Attempts that run at the same time."""
    process_workers: Annotated[int, Meta(ge=1, le=256)] = 2
    """Child processes for handlers with `process=True`; started with the first such task."""
    capacity: Annotated[float, Meta(gt=0, le=1_000)] = 1.0
    """This worker's share of the shards, in relation to its peers."""
    membership: _Text = "database"
    """The list of possible owners: `database` (every live worker), `static:a,b,c` or `dns:name`."""
    member: _Text | None = None
    """This worker's name on such a list. When not given: the host's name, and with `dns` the
    address that it reaches others from."""

    page_size: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    """Most records that one read takes from one shard."""
    window: Annotated[int, Meta(ge=1, le=10_000)] = 2000
    """Records of one shard that are read and not yet covered by the checkpoint. At the bound the
    tailer stops reading; it never forgets."""
    poll_max_s: Annotated[float, Meta(ge=0.001, le=3_600)] = 1.0
    """Longest pause between two reads of an idle log. The shortest is the store's own."""

    horizon_s: Annotated[float, Meta(ge=0.1, le=3_600)] = 10.0
    """Tasks due within this time are kept in memory, later ones in the timer table."""
    timers_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Timers of one shard that are kept in memory."""

    lease_ttl_s: Annotated[float, Meta(ge=0.2, le=3_600)] = 5.0
    """A worker that has not been heard of for this long has lost its shards."""
    heartbeat_s: _Seconds | None = None
    """Time between two heartbeats; when not given a third of `lease_ttl_s`, 0.75 s at most."""
    lease_margin_s: _Wait | None = None
    """Time before the end of its lease at which a worker stops starting tasks; a tenth of
    `lease_ttl_s` when not given."""
    takeovers_max: Annotated[int, Meta(ge=1, le=4096)] = 4
    """Shards acquired at the same time: each begins with a cold read of its log."""

    stall_s: _Seconds = 60.0
    """A worker that does not get on with what it owes for so long gives its shards up and fails its
    health check. Longer than any handler that blocks the event loop may take."""
    look_every_s: Annotated[float, Meta(ge=0, le=86_400)] = 15.0
    """Time between two looks at the whole database, for metrics, by one worker for each group; 0:
    none. Nobody looks without a `health_port` or `late serve`."""
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Port of `/metrics`, `/livez` and `/readyz`; none when not given. 0 takes any free port."""
    health_host: _Text = "127.0.0.1"
    """The address that serves them: this machine's own by default; `0.0.0.0` or `::` where a
    probe comes from outside."""

    wake_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """The port of wake-ups by datagram (`late/notify/notifier.py`); none when not given. 0 takes
    any free port."""
    wake_host: _Text = "127.0.0.1"
    """The address of that port: this machine's own by default; any other needs
    `LATE_WAKE_SECRET`."""

    settle_delay_s: Annotated[float, Meta(ge=0, le=60)] = 0.010
    """Time that an outcome waits for others to share its transaction."""
    settle_batch: _Count = 1000
    """Outcomes that are settled without waiting any longer."""

    otel: Annotated[int, Meta(ge=0, le=1)] = 0
    """1: send metrics and traces by OpenTelemetry (OTLP), to where its own variables say. Needs
    `late[otel]`."""
    otel_every_s: _Seconds = 15.0
    """Time between two sendings of metrics."""

    grace_s: _Wait = 30.0
    """At a stop, how long running tasks may take to finish before they are interrupted."""
    prune_every_s: _Seconds = 15.0
    """Time between two rounds of maintenance."""
    lag_alarm_s: Annotated[float, Meta(ge=0, le=366 * 86_400)] = 600.0
    """Age of the oldest task that a consumer group has not read, above which there is an alarm; 0:
    none is raised."""
    journal_keep_s: Annotated[float, Meta(ge=0, le=3_660 * 86_400)] = 7 * 86_400.0
    """Time that settlements are kept as history, the last of each shard for ever; and the histories
    of tasks."""

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():
            _check(name, getattr(self, name), kind)
        Members.parse(self.membership)
        if self.member is not None and not _is_member(self.member):
            raise ConfigError(
                f"member={self.member[:80]!r}: expected the name or address of this host, without "
                "a port, as the list of members has it"
            )
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

    @property
    def beat_every_s(self) -> float:
        """`heartbeat_s`, or what follows from `lease_ttl_s`."""
        if self.heartbeat_s is None:
            return min(self.lease_ttl_s / 3, BEAT_MAX_S)
        return self.heartbeat_s

    @property
    def margin_s(self) -> float:
        """`lease_margin_s`, or what follows from `lease_ttl_s`."""
        return self.lease_ttl_s / 10 if self.lease_margin_s is None else self.lease_margin_s


def load(environ: Mapping[str, str] | None = None, **overrides: Any) -> WorkerConfig:
    """Settings from keywords, else the environment, else the defaults.

    A keyword that is None counts as not given, so that unset options of a command line can be
    passed on as they are. An empty variable counts as not set. Variables with other names are
    left alone: `LATE_` is shared with the rest of the program.

    Raises:
        ConfigError: see `WorkerConfig`; also for a keyword that is no setting.
    """
    environ = os.environ if environ is None else environ
    kinds = _kinds()
    for name in overrides:
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(kinds)}"
            raise ConfigError(f"no such setting: {name}{hint}")
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        variable = ENV_PREFIX + name.upper()
        if overrides.get(name) is not None:
            values[name] = overrides[name]
        elif text := environ.get(variable, "").strip():
            values[name] = _check(variable, text, kind, strict=False)
    return WorkerConfig(**values)


def _kinds() -> dict[str, Any]:
    """Field name -> type with its bounds, in the order of the struct."""
    hints = get_type_hints(WorkerConfig, include_extras=True)
    return {name: hints[name] for name in WorkerConfig.__struct_fields__}


def _check(label: str, value: Any, kind: Any, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason = str(error).replace("Expected", "expected").replace("`", "")
        raise ConfigError(f"{label}={value!r}: {reason}") from None


def margin_s(settings: WorkerConfig, least_s: float) -> float:
    """Seconds before the end of its lease at which a worker stops: as set, or `least_s`, as far as
    the clocks of its database may be apart.

    Raises:
        ConfigError: no heartbeat could arrive in time with that.
    """
    found_s = max(settings.margin_s, least_s)
    if found_s + settings.beat_every_s >= settings.lease_ttl_s:
        raise ConfigError(
            f"on this database a worker stops {found_s:g} s before its lease is over: "
            f"lease_ttl_s={settings.lease_ttl_s:g} is too short for that"
        )
    return found_s


def package_version() -> str:
    """The version of `late` as it is installed; `0` in a checkout that is not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("late")
    except PackageNotFoundError:
        return "0"
