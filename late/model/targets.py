"""Targets: the services that execute tasks. They are values, checked when they are made.

A target is configuration. A task holds only its name, and nothing from a database becomes an
address. So a task cannot make a worker call an address that the task's producer cannot reach.

Plain text is for this machine only. Another machine is called over TLS, unless `tls=False` (or
`insecure=True`) says that something else, such as a mesh, protects the connection.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from late.errors import ConfigError
from late.model import validation as validate
from late.model.task import BATCH_POOL, PULL_POOL, TRANSACTION_POOL

CONCURRENCY = 64
CONCURRENCY_MAX = 4_096
CONNECT_S = 5.0
PROBE_S = 2.0
RESERVED = ("local", "pull")
"""Names that no target may have: the worker itself, and the pools that consumers fetch from."""
FILE_VARIABLE = "LATE_TARGETS"
FORMATS = ("late", "cloudevents")
"""The forms in which an HTTP target gets a task."""

_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|\[?::1\]?")
_URI_REFERENCE = re.compile(r"(?:[\w.~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)
_HEADER = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True)
class Tls:
    """The certificates of a target and of the worker that calls it.

    Args:
        ca: file of certificates to trust instead of the system's.
        cert: file with the worker's certificate, and those between it and the root (mTLS).
        key: file with the key of `cert`.
        server_name: the name in the target's certificate, if it is not the address's.

    Raises:
        ConfigError: only one of `cert` and `key` is given.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls: cert and key belong together")


@dataclass(frozen=True)
class GrpcTarget:
    """A service that serves `late.v1.Handler` at one or more endpoints.

    Every endpoint has one connection. An attempt goes to the endpoint with the fewest attempts,
    among those that are up. An endpoint whose connection breaks, or whose `grpc.health.v1` says
    NOT_SERVING, gets no attempts.

    Args:
        endpoints: a list of `host:port`. A name with several addresses counts as so many endpoints.
        concurrency: the most attempts that one worker runs there at the same time.
        tls: the TLS settings. None: TLS, but plain text on this machine. False: plain text.
        token: sent as `authorization: Bearer ...`; also `env:NAME` or `file:PATH`.
        metadata: sent with every call; values may be `env:NAME` or `file:PATH`.
        connect_s: the time that an attempt waits for an endpoint to be up.
        probe_s: the time between two health checks of an endpoint, and the time for its answer.

    Raises:
        ConfigError: a value is wrong.
    """

    name: str
    endpoints: tuple[str, ...]
    _: KW_ONLY
    concurrency: int = CONCURRENCY
    tls: Tls | bool | None = None
    token: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_s: float = CONNECT_S
    probe_s: float = PROBE_S

    kind = "grpc"

    def __post_init__(self) -> None:
        if isinstance(self.endpoints, str) or not self.endpoints:
            raise ConfigError(f"target {validate.shown(self.name)}: endpoints is a list of texts")
        object.__setattr__(self, "endpoints", tuple(self.endpoints))
        _check(self)
        for endpoint in self.endpoints:
            address(endpoint)
        for key in self.metadata:
            _check_header(self.name, key)
        if not 0.01 <= self.probe_s <= 5.0:
            raise ConfigError(f"target {self.name!r}: probe_s must be 0.01..5 seconds")

    def tls_for(self, endpoint: str) -> Tls | None:
        """Return the TLS settings for `endpoint`; None for plain text."""
        if isinstance(self.tls, Tls):
            return self.tls
        plain = self.tls is False or (self.tls is None and is_loopback(address(endpoint)[0]))
        return None if plain else Tls()

    @property
    def where(self) -> str:
        """The address, for display."""
        return ", ".join(self.endpoints)

    @property
    def protection(self) -> str:
        """The protection, for display: `tls`, `mtls` or `plain`; several are joined by `/`."""
        kinds = {_protection(self.tls_for(endpoint)) for endpoint in self.endpoints}
        return "/".join(sorted(kinds))


@dataclass(frozen=True)
class HttpTarget:
    """A service that receives each task as a signed POST to one URL.

    The signature is that of the Standard Webhooks specification, so that libraries of many
    languages can check it. Redirects are not followed. At most 1 MiB of an answer is read.

    Args:
        url: `https://...`; `http://` on this machine, or with `insecure`.
        format: `late` sends the task in the form of Standard Webhooks; `cloudevents` sends it as a
            CloudEvent 1.0 in structured mode. Both are signed.
        source: the `source` of events, a URI; `/queues/QUEUE` if None. A task that was put as an
            event keeps its own.
        secret: key of the signature, `whsec_...`, or several while it is changed: each of them
            signs. Also `env:NAME` or `file:PATH`. None sends no signature.
        concurrency: the most attempts that one worker runs there at the same time.
        tls: certificates, if the system's are not enough.
        headers: sent with every request; values may be `env:NAME` or `file:PATH`.
        proxy: URL of a proxy for the requests. The environment's proxy variables are not read.
        insecure: allow `http://` to another machine.
        connect_s: the longest time to connect.
        probe: a path, such as `/healthz`, that answers a GET with a status below 400 while the
            service works. `late target list --check` asks it; workers do not.

    Raises:
        ConfigError: a value is wrong.
    """

    name: str
    url: str
    _: KW_ONLY
    format: Literal["late", "cloudevents"] = "late"
    source: str | None = None
    secret: str | tuple[str, ...] | None = field(default=None, repr=False)
    concurrency: int = CONCURRENCY
    tls: Tls | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy: str | None = field(default=None, repr=False)
    insecure: bool = False
    connect_s: float = CONNECT_S
    probe: str | None = None

    kind = "http"

    def __post_init__(self) -> None:
        _check(self)
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except (ValueError, TypeError, AttributeError):
            parts, host = None, None
        if parts is None or parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"target {self.name!r}: its url must be https://HOST[:PORT][/PATH]")
        if parts.username or parts.password or parts.fragment:
            raise ConfigError(f"target {self.name!r}: no password or fragment in its url")
        if parts.scheme == "http" and not self.insecure and not is_loopback(host):
            raise ConfigError(
                f"target {self.name!r}: http:// sends tasks in plain text to another machine;"
                " use https://, or insecure=True where something else protects the way"
            )
        if self.format not in FORMATS:
            raise ConfigError(f"target {self.name!r}: format is one of {', '.join(FORMATS)}")
        if self.source is not None and (
            self.format != "cloudevents" or not is_uri_reference(self.source)
        ):
            raise ConfigError(
                f"target {self.name!r}: source is a URI, for format='cloudevents' alone"
            )
        if self.probe is not None and not (
            isinstance(self.probe, str) and self.probe.startswith("/") and _is_path(self.probe)
        ):
            raise ConfigError(f"target {self.name!r}: probe is a path, such as /healthz")
        for key in self.headers:
            _check_header(self.name, key)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets as they are configured: `env:` and `file:` are not resolved."""
        if self.secret is None:
            return ()
        return (self.secret,) if isinstance(self.secret, str) else tuple(self.secret)

    @property
    def where(self) -> str:
        """The address, for display."""
        return self.url

    @property
    def protection(self) -> str:
        """The protection, for display: `tls`, `mtls` or `plain`, with `, signed` if it applies."""
        tls = (self.tls or Tls()) if self.url.startswith("https:") else None
        return _protection(tls) + (", signed" if self.secrets else "")


Target = GrpcTarget | HttpTarget


def by_name(targets: Iterable[Target]) -> dict[str, Target]:
    """Return `targets` by name.

    Raises:
        ConfigError: two have the same name, or a value is not a target.
    """
    found: dict[str, Target] = {}
    for target in targets:
        if not isinstance(target, GrpcTarget | HttpTarget):
            raise ConfigError(f"not a late.GrpcTarget or late.HttpTarget: {validate.shown(target)}")
        if target.name in found:
            raise ConfigError(f"two targets are called {target.name!r}")
        found[target.name] = target
    return found


def load(path: str | Path) -> dict[str, Target]:
    """Read the targets of a TOML file, by name.

    Each target is one table with the target's name, which holds `kind` and the arguments of its
    class.

    Raises:
        ConfigError: the file cannot be read, or a value is wrong.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"targets: {path}: {str(error)[:200]}") from None
    return by_name(_target(str(path), name, table) for name, table in tables.items())


def configured(mine: Iterable[Target]) -> dict[str, Target]:
    """Return the targets `mine` and those of the file that `LATE_TARGETS` names, by name.

    The file wins: the address of a service differs between environments, the program does not.

    Raises:
        ConfigError: see `load` and `by_name`.
    """
    found = by_name(mine)
    path = os.environ.get(FILE_VARIABLE)
    return {**found, **load(path)} if path else found


def is_known(name: str, targets: Mapping[str, Target]) -> bool:
    """Tell whether `name` is one of these targets, or a pool that every worker has."""
    pools = ("local", TRANSACTION_POOL)
    return name in pools or name.startswith((PULL_POOL, BATCH_POOL)) or name in targets


def resolve(text: str, what: str) -> str:
    """Return the variable of `env:NAME`, the content of `file:PATH`, or else `text` itself.

    Raises:
        ConfigError: it does not exist or is empty. The message has its name and not its value.
    """
    kind, _, where = text.partition(":")
    if kind == "env":
        found = os.environ.get(where, "")
    elif kind == "file":
        try:
            found = Path(where).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{what}: {where} cannot be read: {type(error).__name__}") from None
    else:
        # The text is empty if the application itself reads a variable that is not set. A server
        # with an empty token would accept every caller that sends an empty one.
        found, text = text, "it"
    if not found:
        raise ConfigError(f"{what}: {text} is empty or not set")
    return found


def address(endpoint: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 address is in brackets.

    Raises:
        ConfigError: `endpoint` does not have that form.
    """
    host, colon, port = endpoint.rpartition(":") if isinstance(endpoint, str) else ("", "", "")
    host_ok = re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host)
    if not colon or not host_ok or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"an endpoint is host:port, got {validate.shown(endpoint)}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Tell whether the text of `host` names this machine; no name is looked up."""
    return _LOOPBACK.fullmatch(host) is not None


def is_uri_reference(text: str) -> bool:
    """Tell whether `text` has only characters of a URI or of a reference to one, and any."""
    return _URI_REFERENCE.fullmatch(text) is not None


def _is_path(text: str) -> bool:
    # Two slashes at the beginning would name another host.
    return is_uri_reference(text) and not text.startswith("//")


def _target(path: str, name: str, table: Any) -> Target:
    kinds: dict[str, type[Target]] = {"grpc": GrpcTarget, "http": HttpTarget}
    if not isinstance(table, dict) or table.get("kind") not in kinds:
        raise ConfigError(f"targets: {path}: [{name}] needs kind = 'grpc' or 'http'")
    cls = kinds[table["kind"]]
    given = {key: value for key, value in table.items() if key != "kind"}
    unknown = given.keys() - cls.__dataclass_fields__.keys()
    if unknown or "name" in given:
        named = ", ".join(sorted(unknown or {"name"}))
        raise ConfigError(f"targets: {path}: [{name}] has an unknown setting: {named}")
    try:
        return msgspec.convert({"name": name, **given}, cls)
    except msgspec.ValidationError as error:
        raise ConfigError(f"targets: {path}: [{name}]: {error}") from None


def _check(target: Target) -> None:
    name = target.name
    if not validate.is_name(name) or name in RESERVED:
        raise ConfigError(f"a target cannot be called {validate.shown(name)}")
    count = target.concurrency
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= CONCURRENCY_MAX:
        raise ConfigError(f"target {name!r}: concurrency must be 1..{CONCURRENCY_MAX}")
    if not 0.01 <= target.connect_s <= 60:
        raise ConfigError(f"target {name!r}: connect_s must be 0.01..60 seconds")


def _check_header(name: str, key: str) -> None:
    if not _HEADER.fullmatch(key):
        raise ConfigError(f"target {name!r}: a header is called {validate.shown(key)}")


def _protection(tls: Tls | None) -> str:
    return "plain" if tls is None else "mtls" if tls.cert else "tls"
