"""The settings of `late serve` about identity providers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from late.errors import ConfigError

CLIENT_VARIABLE = "LATE_OIDC_CLIENT_SECRET"
SESSION_S, SESSION_S_MIN, SESSION_S_MAX = 8 * 3_600.0, 60.0, 86_400.0
_SECRET_BYTES = 4_096


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The provider at which people sign in."""

    issuer: str
    client_id: str
    secret_file: str | None = None
    """A file with the client's secret; else `LATE_OIDC_CLIENT_SECRET`. A public client has none."""
    roles_claim: str = "groups"
    user_claim: str = "email"
    scopes: str = "openid email profile"
    session_s: float = SESSION_S
    page_url: str | None = None
    """The address at which browsers reach the server, such as `https://late.example.com`."""

    def secret(self) -> str:
        """The client's secret; empty if there is none.

        Raises:
            ConfigError: its file cannot be read, or is empty.
        """
        if self.secret_file is None:
            return os.environ.get(CLIENT_VARIABLE, "")
        try:
            with Path(self.secret_file).open("rb") as file:
                text = file.read(_SECRET_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--oidc-secret-file {self.secret_file[:200]}: {error}") from None
        if not text:
            raise ConfigError(f"--oidc-secret-file {self.secret_file[:200]}: it is empty")
        return text


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The issuer of the tokens of services, and the audience that they must name."""

    issuer: str
    audience: str
    scope_claim: str = "scope"


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The proxies that are believed, and the headers in which they name people."""

    addresses: tuple[str, ...]
    user_header: str = "X-Forwarded-User"
    groups_header: str = "X-Forwarded-Groups"


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The ways in besides `late token`, and the rules about rights."""

    oidc: OidcSettings | None = None
    jwt: JwtSettings | None = None
    proxy: ProxySettings | None = None
    rules: tuple[str, ...] = ()

    @property
    def used(self) -> bool:
        """There is such a way in."""
        return not (self.oidc is None and self.jwt is None and self.proxy is None)
