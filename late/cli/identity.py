"""Options of `late serve` about identity providers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from late.cli import options
from late.errors import ConfigError

Text = str | None
PANEL = "Identity providers"


Role = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RULE",
        rich_help_panel=PANEL,
        help="Who may what: group:sre=admin, user:ann@example.com=view:orders, "
        "service:svc-orders=enqueue+consume:orders; may be repeated.",
    ),
]
RolesFile = Annotated[
    Text,
    typer.Option(metavar="FILE", rich_help_panel=PANEL, help="Such rules, one a line."),
]
OidcIssuer = Annotated[
    Text,
    typer.Option(metavar="URL", rich_help_panel=PANEL, help="People sign in to the page here."),
]
OidcClientId = Annotated[
    Text, typer.Option(metavar="ID", rich_help_panel=PANEL, help="This server's name there.")
]
OidcSecretFile = Annotated[
    Text,
    typer.Option(
        metavar="FILE",
        rich_help_panel=PANEL,
        help="The client's secret; else $LATE_OIDC_CLIENT_SECRET.",
    ),
]
OidcRolesClaim = Annotated[
    str, typer.Option(metavar="CLAIM", rich_help_panel=PANEL, help="The claim with the groups.")
]
OidcUserClaim = Annotated[
    str,
    typer.Option(
        metavar="CLAIM",
        rich_help_panel=PANEL,
        help="The claim that names the person; an email only if it is verified, else sub.",
    ),
]
OidcScopes = Annotated[
    str, typer.Option(metavar="SCOPES", rich_help_panel=PANEL, help="What is asked for.")
]
Session = Annotated[
    str, typer.Option(metavar="TIME", rich_help_panel=PANEL, help="How long a sign-in lasts.")
]
PageUrl = Annotated[
    Text,
    typer.Option(
        metavar="URL",
        rich_help_panel=PANEL,
        help="Where browsers reach this server, such as https://late.example.com.",
    ),
]
JwtIssuer = Annotated[
    Text,
    typer.Option(metavar="URL", rich_help_panel=PANEL, help="Services show JWTs of it."),
]
JwtAudience = Annotated[
    Text,
    typer.Option(metavar="AUD", rich_help_panel=PANEL, help="For whom these must be."),
]
JwtScopeClaim = Annotated[
    str, typer.Option(metavar="CLAIM", rich_help_panel=PANEL, help="The claim of scope: rules.")
]
TrustedProxy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=PANEL,
        help="A proxy that names people, such as 10.0.0.7/32; may be repeated.",
    ),
]
UserHeader = Annotated[
    Text,
    typer.Option(
        metavar="HEADER",
        rich_help_panel=PANEL,
        help="The header with the name; X-Forwarded-User by default.",
    ),
]
GroupsHeader = Annotated[
    Text,
    typer.Option(
        metavar="HEADER",
        rich_help_panel=PANEL,
        help="The header with the groups; X-Forwarded-Groups by default.",
    ),
]


def identity(
    role: Role = None,
    roles_file: RolesFile = None,
    oidc_issuer: OidcIssuer = None,
    oidc_client_id: OidcClientId = None,
    oidc_secret_file: OidcSecretFile = None,
    oidc_roles_claim: OidcRolesClaim = "groups",
    oidc_user_claim: OidcUserClaim = "email",
    oidc_scopes: OidcScopes = "openid email profile",
    session: Session = "8h",
    page_url: PageUrl = None,
    jwt_issuer: JwtIssuer = None,
    jwt_audience: JwtAudience = None,
    jwt_scope_claim: JwtScopeClaim = "scope",
    trusted_proxy: TrustedProxy = None,
    user_header: UserHeader = None,
    groups_header: GroupsHeader = None,
) -> Any:
    """Make the `IdentitySettings` of these options; `options.shared` gives them to a command."""
    from late.api.identity import roles
    from late.api.identity.settings import (
        IdentitySettings,
        JwtSettings,
        OidcSettings,
        ProxySettings,
    )

    _together("--oidc-issuer", oidc_issuer, "--oidc-client-id", oidc_client_id)
    _together("--jwt-issuer", jwt_issuer, "--jwt-audience", jwt_audience)
    if oidc_issuer is None and not (oidc_secret_file is None and page_url is None):
        raise ConfigError("--oidc-secret-file and --page-url take --oidc-issuer")
    if not trusted_proxy and (user_header or groups_header):
        raise ConfigError(
            "--user-header and --groups-header take --trusted-proxy, the address of the proxy: "
            "anybody could send them otherwise"
        )
    rules = (*(roles.read(roles_file) if roles_file is not None else ()), *(role or ()))
    oidc = jwt = proxy = None
    if oidc_issuer is not None and oidc_client_id is not None:
        oidc = OidcSettings(
            issuer=oidc_issuer,
            client_id=oidc_client_id,
            secret_file=oidc_secret_file,
            roles_claim=oidc_roles_claim,
            user_claim=oidc_user_claim,
            scopes=oidc_scopes,
            session_s=options.duration_us(session, "--session") / 1e6,
            page_url=page_url,
        )
    if jwt_issuer is not None and jwt_audience is not None:
        jwt = JwtSettings(issuer=jwt_issuer, audience=jwt_audience, scope_claim=jwt_scope_claim)
    if trusted_proxy:
        proxy = ProxySettings(
            addresses=tuple(trusted_proxy),
            user_header=user_header or "X-Forwarded-User",
            groups_header=groups_header or "X-Forwarded-Groups",
        )
    return IdentitySettings(oidc=oidc, jwt=jwt, proxy=proxy, rules=rules)


def _together(first: str, one: str | None, second: str, other: str | None) -> None:
    if (one is None) != (other is None):
        raise ConfigError(f"{first} takes {second}, and the other way round")
