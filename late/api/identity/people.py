"""People who sign in at a provider by OpenID Connect: the authorization code flow with PKCE.

A sign-in is bound to the browser that began it by a signed cookie, which holds the state, the nonce
and the verifier. So no process keeps anything for it, and strangers fill no memory. A session is a
signed cookie too. Its rights are looked up at each request.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus, urlencode

from late.api.errors import BadRequest, Forbidden, NotBegun, Unauthenticated, Unavailable
from late.api.identity import jwts
from late.api.identity.fetch import AWAY, ProviderRefused, check_url, fetch
from late.api.identity.names import is_jwt, is_name, name_of
from late.api.identity.provider import Provider
from late.api.identity.roles import Claim, RoleMap
from late.api.identity.sessions import COOKIE_BYTES, Seal, Session, SignIn, new_text
from late.api.identity.settings import OidcSettings
from late.errors import ConfigError
from late.model.access.rights import Caller

SIGN_IN_US = 600_000_000
"""A person has this time at the provider."""
USED_MAX = 10_000
EXCHANGES = 4
"""Codes that are exchanged at once: each takes a thread, also while the provider is slow."""
GROUPS_MAX = 1_000
AGAIN = "this sign-in was not begun in this browser, or is over: sign in again"
REFUSED = "the identity provider's answer was refused: sign in again"


class People:
    """Signs people in, and knows them again by their session."""

    def __init__(self, settings: OidcSettings, provider: Provider, roles: RoleMap) -> None:
        self._settings = settings
        self._secret = settings.secret()
        self._provider = provider
        self._roles = roles
        self._seal: Seal | None = None
        self._used: OrderedDict[str, None] = OrderedDict()
        """The states of sign-ins that are over, as far as this process has seen them."""
        self._exchanges = asyncio.Semaphore(EXCHANGES)
        self._return_to = ""
        if settings.page_url is not None:
            check_url(settings.page_url, "--page-url")

    def serve(self, key: bytes, page_at: str) -> None:
        """Begin to serve.

        Args:
            key: `form_key` of `late_secret`.
            page_at: where the page begins if the settings do not say.
        """
        self._seal = Seal(key)
        base = self._settings.page_url
        self._return_to = (page_at if base is None else f"{base.rstrip('/')}/ui/") + "oidc/callback"

    @property
    def secure(self) -> bool:
        """Browsers come over TLS, which may end at a proxy."""
        return (self._settings.page_url or "").startswith("https:")

    async def begin(self, path: str, now_us: int) -> tuple[str, str]:
        """Begin a sign-in; return the provider's address to go to, and the browser's cookie.

        Raises:
            Unavailable: the provider was never reached.
        """
        metadata = await self._provider.metadata()
        begun = SignIn(new_text(), new_text(), new_text(), path, now_us + SIGN_IN_US)
        digest = hashlib.sha256(begun.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._return_to,
            "scope": self._settings.scopes,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        where = _address(metadata, "authorization_endpoint")
        return f"{where}{'&' if '?' in where else '?'}{urlencode(asked)}", self._sealer.close(begun)

    async def finish(
        self, sent: Mapping[str, str], cookie: str | None, now_us: int
    ) -> tuple[Session, str, str]:
        """End a sign-in; return the session, its cookie and the page to go to.

        Args:
            sent: the query with which the provider has sent the browser back.

        Raises:
            Unauthenticated, BadRequest: it was refused. The message does not give details.
            Forbidden: the person has no role.
            Unavailable: the provider does not answer.
        """
        begun = self._sealer.open(cookie, SignIn, now_us)
        state = sent.get("state", "")
        if begun is None or not hmac.compare_digest(begun.state.encode(), state.encode()):
            raise NotBegun(AGAIN)
        if begun.state in self._used:
            raise NotBegun(AGAIN)
        self._used[begun.state] = None
        if len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        # An answer of another issuer, to which this sign-in was not sent (RFC 9207).
        if sent.get("iss", self._provider.issuer) != self._provider.issuer:
            raise BadRequest(REFUSED)
        if sent.get("error") or not sent.get("code"):
            raise Unauthenticated("the identity provider has not signed you in: sign in again")
        claims = await self._claims(sent["code"], begun, now_us)
        session = self._session(claims, now_us)
        return session, self._cookie(session), begun.path

    async def _claims(self, code: str, begun: SignIn, now_us: int) -> dict[str, Any]:
        """Exchange the code for an ID token, and return what that says."""
        metadata = await self._provider.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._return_to,
            "code_verifier": begun.verifier,
            "client_id": self._settings.client_id,
        }
        headers = {}
        if self._secret:
            methods = metadata.get("token_endpoint_auth_methods_supported")
            if isinstance(methods, list) and "client_secret_basic" not in methods:
                form["client_secret"] = self._secret
            else:
                pair = f"{quote_plus(self._settings.client_id)}:{quote_plus(self._secret)}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            async with self._exchanges:
                where = _address(metadata, "token_endpoint")
                found = await fetch(where, form=form, headers=headers)
        except ProviderRefused:
            raise Unauthenticated(REFUSED) from None
        text = found.get("id_token")
        if not isinstance(text, str) or not is_jwt(text):
            raise Unauthenticated(REFUSED)
        try:
            await self._provider.prepare(jwts.kid_of(text))
            claims = jwts.verify(text, self._provider, self._settings.client_id, now_us)
        except jwts.WrongToken:
            raise Unauthenticated(REFUSED) from None
        nonce, party = claims.get("nonce"), claims.get("azp", self._settings.client_id)
        same = isinstance(nonce, str) and hmac.compare_digest(nonce.encode(), begun.nonce.encode())
        if not same or party != self._settings.client_id:
            raise Unauthenticated(REFUSED)
        return claims

    def _session(self, claims: dict[str, Any], now_us: int) -> Session:
        subject = claims["sub"]
        given = claims.get(self._settings.user_claim)
        # An address that the provider has not verified may be anybody's.
        trusted = self._settings.user_claim != "email" or claims.get("email_verified") is True
        name = given if trusted and isinstance(given, str) and is_name(given) else subject
        groups = jwts.texts_of(claims, self._settings.roles_claim)[:GROUPS_MAX]
        said = [Claim("user", name), *(Claim("group", each) for each in groups)]
        known = self._roles.known(said)
        if not known:
            raise Forbidden(
                f"you are signed in as {name}, and no role here is for you or for one of your "
                f"groups (claim {self._settings.roles_claim!r}): an operator gives one with "
                "late serve --role"
            )
        expires_us = now_us + round(self._settings.session_s * 1e6)
        return Session(new_text(), self._provider.issuer, subject, name, known, expires_us)

    def _cookie(self, session: Session) -> str:
        text = self._sealer.close(session)
        if len(text) > COOKIE_BYTES:
            raise Forbidden("too many of your groups have a role here: a browser keeps no more")
        return text

    def caller(self, cookie: str | None, now_us: int) -> Caller | None:
        """The person of a session; None if it is none, or is over.

        Raises:
            Forbidden: the rules of now give the person no role.
        """
        session = self._sealer.open(cookie, Session, now_us)
        if session is None or session.issuer != self._provider.issuer:
            return None
        rights = self._roles.rights(session.claims)
        if not rights:
            raise Forbidden(f"you are signed in as {session.name}, and have no role here any more")
        return Caller(
            name_of("oidc", session.subject),
            rights,
            actor=f"oidc:{session.name}",
            expires_at_us=session.expires_us,
            session=session.key,
        )

    @property
    def _sealer(self) -> Seal:
        assert self._seal is not None
        return self._seal


def _address(metadata: dict[str, Any], name: str) -> str:
    url = metadata.get(name)
    try:
        return check_url(url if isinstance(url, str) else "", name)
    except ConfigError:
        raise Unavailable(AWAY) from None
