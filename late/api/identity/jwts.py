"""The check of a signed token (JWT): of its signature, issuer, audience and time.

Every clock that a lifetime is compared with is the database's, as for the tokens of `late token`.
`exp` is exact. A beginning (`nbf`, `iat`) may be `LEEWAY_S` ahead, for issuers whose clock is.
"""

from __future__ import annotations

import math
from typing import Any

import jwt

from late.api.errors import Unauthenticated
from late.api.identity.names import is_name
from late.api.identity.provider import Provider

LEEWAY_S = 30
TIME_MAX = 2**40
TYPES = (None, "jwt", "at+jwt", "application/at+jwt")
REFUSED = "this token is not valid"


class WrongToken(Unauthenticated):
    """The token is not one of this issuer for this audience, that is valid now."""


def kid_of(text: str) -> str | None:
    """The id of the key that a token says it is signed with.

    Raises:
        WrongToken: its head cannot be read, or asks for what is not done here.
    """
    try:
        head = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise WrongToken(REFUSED) from None
    kind, kid = head.get("typ"), head.get("kid")
    # A critical extension changes what the token means, and none is known here.
    if "crit" in head or not (kind is None or (isinstance(kind, str) and kind.lower() in TYPES)):
        raise WrongToken(REFUSED)
    if not (kid is None or (isinstance(kid, str) and len(kid) <= 256)):
        raise WrongToken(REFUSED)
    return kid


def verify(text: str, provider: Provider, audience: str, now_us: int) -> dict[str, Any]:
    """Return the claims of a token whose key is known. `sub`, `iss`, `aud`, `exp` are there.

    Raises:
        WrongToken: it is refused. The message does not give the reason.
    """
    signing = provider.key(kid_of(text))
    if signing is None:
        raise WrongToken(REFUSED)
    try:
        claims = jwt.decode(
            text,
            signing.key,
            algorithms=list(signing.algorithms),
            audience=audience,
            issuer=provider.issuer,
            # Times are compared below, by the database's clock.
            options={
                "require": ["iss", "sub", "aud", "exp"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise WrongToken(REFUSED) from None
    _check_times(claims, now_us / 1e6)
    if not is_name(claims["sub"]):
        raise WrongToken(REFUSED)
    return claims


def _check_times(claims: dict[str, Any], now_s: float) -> None:
    for name in ("exp", "nbf", "iat"):
        moment = claims.get(name)
        if moment is None and name != "exp":
            continue
        # A bool is an int in Python.
        if not isinstance(moment, int | float) or isinstance(moment, bool):
            raise WrongToken(REFUSED)
        if not (math.isfinite(moment) and 0 <= moment < TIME_MAX):
            raise WrongToken(REFUSED)
        if (now_s >= moment) if name == "exp" else (moment > now_s + LEEWAY_S):
            raise WrongToken(REFUSED)


def texts_of(claims: dict[str, Any], path: str) -> list[str]:
    """The texts of a claim: a list, or one text with spaces as `scope` has; a `.` leads inside."""
    found: Any = claims
    if path not in claims:
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None
    else:
        found = claims[path]
    if isinstance(found, str):
        return found.split() if path in ("scope", "scp") else [found]
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
