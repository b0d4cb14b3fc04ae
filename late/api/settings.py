"""The settings of `late serve`: its interfaces, its addresses and its callers."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import msgspec

from late.api import limits
from late.api.identity.settings import IdentitySettings
from late.app.app import App
from late.errors import ConfigError

if TYPE_CHECKING:
    from late.api.http.uvicorn_server import Tls

ROLES = ("api", "tail", "dispatch", "web")
INTERFACES = frozenset({"api", "web"})
"""Roles that neither own shards nor run handlers."""


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses, callers and roles of `late serve`.

    A port of None is not served; 0 takes any free port.
    """

    host: str = "127.0.0.1"
    http_port: int | None = 7280
    grpc_port: int | None = None
    identity: IdentitySettings = IdentitySettings()
    """Ways in besides the tokens of `late token`. With one, tokens are asked for as with `auth`."""
    auth: bool = False
    """Ask for tokens. Without them only this machine may be served."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    """A client with a certificate of this authority has the rights of the token of its name."""
    rate: float = limits.RATE
    roles: tuple[str, ...] = ROLES
    api_changes: bool = False
    """Operators may change things over HTTP, by their roles."""
    signed_urls: bool = False
    """Whoever has a URL that the holder of a token signed may put the task of the URL."""
    web_changes: bool = False
    """The page may change things, for callers that may `operate`."""
    reports: str | None = None
    """A folder of cost reports, which the page links to."""
    trace_url: str | None = None
    """The address of a trace, with `{trace}` in place of its id, which the page links to."""
    advertise: str | None = None
    """The host:port at which other processes reach this one's gRPC; its own address when None."""

    @property
    def guarded(self) -> bool:
        """Callers must say who they are."""
        return self.auth or self.identity.used

    @property
    def serves_page(self) -> bool:
        """The page is served."""
        return "web" in self.roles and self.http_port is not None

    def reached_at(self, port: int) -> str:
        """The address at which other processes reach this one, which serves gRPC on `port`."""
        return self._named(port) if self.advertise is None else self.advertise

    def page_at(self, port: int, root: str) -> str:
        """The address of the page for operators, which begins at `root` on `port`.

        If the server listens on every address, the host is this machine's name.
        """
        return f"http{'s' if self.tls_cert else ''}://{self._named(port)}{root}"

    def _named(self, port: int) -> str:
        wild = self.host in ("0.0.0.0", "::")  # It compares. # nosec B104
        host = socket.gethostname() if wild else self.host.strip("[]")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def checked(self) -> Tls | None:
        """The certificate to serve with, if any.

        Raises:
            ConfigError: the settings are unsafe or do not fit together.
        """
        unknown = set(self.roles) - set(ROLES)
        if unknown or not self.roles:
            raise ConfigError(f"roles are {', '.join(ROLES)}; got {', '.join(self.roles)[:80]!r}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS takes both a certificate and its key")
        if self.tls_ca is not None and self.tls_cert is None:
            raise ConfigError("certificates of clients take TLS: give --tls-cert and --tls-key")
        if "api" in self.roles and self.http_port is None and self.grpc_port is None:
            raise ConfigError("nothing to serve: give a port for HTTP or for gRPC")
        if set(self.roles) == {"web"} and self.http_port is None:
            raise ConfigError("the page is served over HTTP: give a port for it")
        if self.reports is not None:
            if "web" not in self.roles:
                raise ConfigError("--reports is for the page: it takes the role web")
            from late.web.usage.cost_report import Reports

            Reports(self.reports)
        if self.trace_url is not None and not (
            self.trace_url.startswith(("http://", "https://")) and "{trace}" in self.trace_url
        ):
            raise ConfigError("--trace-url is an address of http or https with {trace} in it")
        if self.signed_urls and not self.guarded:
            raise ConfigError("URLs are signed with tokens: --signed-urls takes --auth")
        limits.check_bind(self.host, tls=self.tls_cert is not None, auth=self.guarded)
        if self.tls_cert is None or self.tls_key is None:
            return None
        from late.api.http.uvicorn_server import Tls

        return Tls(self.tls_cert, self.tls_key, self.tls_ca)

    def check_app(self, app: App) -> None:
        """Raise `ConfigError` for handlers that nobody would run."""
        if "dispatch" not in self.roles or "tail" not in self.roles:
            batches = sorted(
                n for n, t in app.tasks.items() if t.policy.target.startswith("batch:")
            )
            if batches and set(self.roles) - INTERFACES:
                raise ConfigError(
                    f"a batch is put together where its shards are, but {batches[0]!r} is one: it "
                    "takes the roles tail and dispatch in one process"
                )
        runs = any(task.policy.target == "local" for task in app.tasks.values())
        if "dispatch" in self.roles and "tail" not in self.roles and not runs:
            raise ConfigError("dispatch without tail runs an app's functions: there are none")
