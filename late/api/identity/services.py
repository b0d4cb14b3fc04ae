"""Services with a JWT of their own as bearer token, over HTTP and gRPC."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jwt

from late.api.errors import Forbidden, Unavailable
from late.api.identity import jwts
from late.api.identity.fetch import AWAY
from late.api.identity.names import name_of
from late.api.identity.provider import Provider
from late.api.identity.roles import Claim, RoleMap
from late.api.identity.settings import JwtSettings
from late.model.access.rights import Caller


class Services:
    """Admits the bearers of tokens of one issuer."""

    def __init__(self, settings: JwtSettings, provider: Provider, roles: RoleMap) -> None:
        self._settings = settings
        self.provider = provider
        self._roles = roles

    async def prepare(self, text: str) -> None:
        """Have the key that a token needs, if the issuer has it. It refuses nothing."""
        with suppress(jwts.WrongToken):
            # What says itself that it is another issuer's is not worth a request.
            if _says(text).get("iss") == self._settings.issuer:
                await self.provider.prepare(jwts.kid_of(text))

    def admit(self, text: str, now_us: int) -> Caller | None:
        """Return the caller that presents a token; None if it is refused.

        Raises:
            Forbidden: it is valid, and no rule gives it a right.
            Unavailable: the issuer's keys were never read.
        """
        if not self.provider.known:
            raise Unavailable(AWAY)
        try:
            claims = jwts.verify(text, self.provider, self._settings.audience, now_us)
        except jwts.WrongToken:
            return None
        subject = claims["sub"]
        scopes = jwts.texts_of(claims, self._settings.scope_claim)
        said = [Claim("service", subject), *(Claim("scope", each) for each in scopes)]
        rights = self._roles.rights(said)
        if not rights:
            raise Forbidden(f"no --role of this server is for the service {subject!r}")
        expires_us = int(claims["exp"] * 1_000_000)
        return Caller(
            name_of("jwt", subject), rights, actor=f"jwt:{subject}", expires_at_us=expires_us
        )


def _says(text: str) -> dict[str, Any]:
    try:
        found = jwt.decode(text, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise jwts.WrongToken(jwts.REFUSED) from None
    return found if isinstance(found, dict) else {}
