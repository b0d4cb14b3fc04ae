"""The provider's metadata and its public keys: cached, followed, and fetched at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from late import events
from late.api.errors import Unavailable
from late.api.identity.fetch import AWAY, check_url, fetch
from late.errors import ConfigError

logger = logging.getLogger("late.api")

DISCOVERY = "/.well-known/openid-configuration"
REFRESH_S = 300.0
"""Keys are read again after this time: one that the provider has removed is trusted no longer."""
REST_S = 10.0
"""Between two fetches that unknown keys ask for: a stranger can name keys that do not exist."""
TRUST_S = 86_400.0
"""While the provider does not answer, its last keys are trusted for so long."""
KEYS_MAX = 100
RSA_BITS = 2_048
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
"""Asymmetric ones alone, by the kind of the key. So no token chooses how it is checked, and none
makes a secret of a public key."""


class SigningKey:
    """One public key, with the algorithms that it may be used with."""

    def __init__(self, key: jwt.PyJWK, algorithms: tuple[str, ...]) -> None:
        self.key = key
        self.algorithms = algorithms


class Provider:
    """One issuer.

    Raises:
        ConfigError: its address is not safe.
    """

    def __init__(self, issuer: str, *, clock: Callable[[], float] = monotonic) -> None:
        self.issuer = check_url(issuer, "the issuer")
        self._clock = clock
        self._keys: dict[str | None, SigningKey] = {}
        self._metadata: dict[str, Any] | None = None
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._away = False

    async def metadata(self) -> dict[str, Any]:
        """The provider's addresses.

        Raises:
            Unavailable: they were never read, and the provider does not answer.
        """
        if self._metadata is None:
            await self._read_once()
        if self._metadata is None:
            raise Unavailable(AWAY)
        return self._metadata

    async def prepare(self, kid: str | None) -> None:
        """Have the key of this id if the provider has it; fetches at most once in `REST_S`."""
        if self.key(kid) is None:
            await self._read_once()

    def key(self, kid: str | None) -> SigningKey | None:
        """The key of this id; without an id, the only key."""
        if self._read_at is None or self._clock() - self._read_at > TRUST_S:
            return None
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    @property
    def known(self) -> bool:
        """The keys have been read, and not too long ago."""
        return self._read_at is not None and self._clock() - self._read_at <= TRUST_S

    async def refresh(self) -> None:
        """Read the keys again: a job."""
        self._tried_at = None
        await self._read_once()

    async def _read_once(self) -> None:
        """Read, or wait for whoever reads; nothing if somebody has tried a moment ago."""
        if self._reading is None or self._reading.done():
            if self._tried_at is not None and self._clock() - self._tried_at < REST_S:
                return
            self._tried_at = self._clock()
            self._reading = asyncio.create_task(self._read(), name="late-issuer")
        # A caller that goes away must not end it for the others.
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        try:
            found = await fetch(self.issuer.rstrip("/") + DISCOVERY)
            if found.get("issuer") != self.issuer:
                raise Unavailable(f"it calls itself {str(found.get('issuer'))[:120]!r}")
            where = found.get("jwks_uri")
            if not isinstance(where, str):
                raise Unavailable("it names no jwks_uri")
            listed = await fetch(where)
            keys = keys_of(listed.get("keys"))
            if not keys:
                raise Unavailable("it has no key that may be used here")
        except (Unavailable, ConfigError) as error:
            if not self._away:
                reason = str(error.__cause__ or error)[:200]
                events.default.emit(events.ISSUER_AWAY, issuer=self.issuer, error=reason)
            self._away = True
            return
        self._away = False
        self._metadata, self._keys, self._read_at = found, keys, self._clock()


def keys_of(listed: object) -> dict[str | None, SigningKey]:
    """The keys of a JWK set that may sign, by their ids; all others are left out."""
    found: dict[str | None, SigningKey] = {}
    for each in listed[:KEYS_MAX] if isinstance(listed, list) else []:
        made = _key_of(each)
        if made is not None:
            kid = each.get("kid")
            found[kid if isinstance(kid, str) else None] = made
    return found


def _key_of(each: object) -> SigningKey | None:
    if not isinstance(each, dict) or each.get("use", "sig") != "sig":
        return None
    kind = each.get("kty")
    algorithms = ALGORITHMS.get(str(kind if kind == "RSA" else each.get("crv")), ())
    named = each.get("alg")
    if named is not None:
        algorithms = tuple(one for one in algorithms if one == named)
    if kind not in ("RSA", "EC", "OKP") or not algorithms:
        return None
    try:
        # One algorithm has to be named for the key to be read; `algorithms` says which count.
        key = jwt.PyJWK({**each, "alg": algorithms[0]})
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if hasattr(key.key, "private_numbers") or hasattr(key.key, "private_bytes"):
        return None  # a set that gives away a private key is nothing to trust
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < RSA_BITS:
        return None
    return SigningKey(key, algorithms)
