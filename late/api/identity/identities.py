"""Make the ways in that `late serve` was given. What they need is imported here alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from late.api.identity.proxy import TrustedProxy
from late.api.identity.roles import RoleMap
from late.api.identity.settings import SESSION_S_MAX, SESSION_S_MIN, IdentitySettings
from late.errors import ConfigError
from late.worker.background import BackgroundJob

if TYPE_CHECKING:
    from late.api.identity.people import People
    from late.api.identity.provider import Provider
    from late.api.identity.services import Services


@dataclass(frozen=True, slots=True)
class Identities:
    """The ways in besides `late token`."""

    services: Services | None = None
    people: People | None = None
    proxy: TrustedProxy | None = None
    providers: tuple[Provider, ...] = ()

    def jobs(self) -> list[BackgroundJob]:
        """Make the jobs that read the keys of the providers again and again."""
        if not self.providers:  # Then `late-queue[oidc]` need not be installed.
            return []
        from late.api.identity.provider import REFRESH_S

        return [
            BackgroundJob(name="issuer keys", run=each.refresh, period_s=REFRESH_S, first_s=0.0)
            for each in self.providers
        ]


def make(settings: IdentitySettings, *, page: bool) -> Identities:
    """Make the ways in that the settings name. Nothing is asked of a provider yet.

    Args:
        page: the page is served.

    Raises:
        ConfigError: the settings are unsafe or do not fit together.
    """
    roles = RoleMap(settings.rules)
    if not settings.used:
        if roles:
            raise ConfigError("--role takes --oidc-issuer, --jwt-issuer or --trusted-proxy")
        return Identities()
    if not roles:
        raise ConfigError("nobody would have a right: give --role or --roles-file")
    if not page and (settings.oidc is not None or settings.proxy is not None):
        raise ConfigError("people come to the page: it takes the role web, and a port for HTTP")
    proxy = None if settings.proxy is None else TrustedProxy(settings.proxy, roles)
    if settings.oidc is None and settings.jwt is None:
        return Identities(proxy=proxy)
    try:
        from late.api.identity.people import People
        from late.api.identity.provider import Provider
        from late.api.identity.services import Services
    except ModuleNotFoundError as error:
        raise ConfigError(
            "an identity provider takes pyjwt: pip install 'late-queue[oidc]'"
        ) from error
    oidc, jwt = settings.oidc, settings.jwt
    if oidc is not None and jwt is not None and oidc.client_id == jwt.audience:
        raise ConfigError(
            "--jwt-audience is --oidc-client-id: the ID token of any person would be a service's"
        )
    if oidc is not None and not SESSION_S_MIN <= oidc.session_s <= SESSION_S_MAX:
        raise ConfigError("--session: from 1m to 24h")
    issuers = dict.fromkeys(each.issuer for each in (oidc, jwt) if each is not None)
    providers = {issuer: Provider(issuer) for issuer in issuers}
    return Identities(
        services=None if jwt is None else Services(jwt, providers[jwt.issuer], roles),
        people=None if oidc is None else People(oidc, providers[oidc.issuer], roles),
        proxy=proxy,
        providers=tuple(providers.values()),
    )
