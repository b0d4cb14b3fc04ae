"""Bearer tokens: their format, the hash that is kept of them, and their rights. Pure.

A token is `late.NAME.SECRET`. The secret has 256 random bits, which nobody can guess, so a plain
SHA-256 protects it as well as a slow hash. The hash of a presented token is compared in constant
time with the one hash that is kept under its name.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection

import msgspec

from late.errors import ConfigError, InvalidName
from late.model import validation as validate
from late.model.access.rights import SCOPES, Caller, Scope, check_patterns, of_token

CERTIFICATE = "certificate"
"""A value in place of a hash: callers of this name have a client certificate and no secret."""
_PREFIX = "late."
_NOBODY = hashlib.sha256(b"nobody").hexdigest()


class Token(msgspec.Struct, frozen=True):
    """One row of `late_token`."""

    name: str
    digest: str
    scopes: tuple[Scope, ...]
    queues: tuple[str, ...]
    """Patterns with `*`. A queue must match one of them."""
    created_at_us: int = 0
    expires_at_us: int | None = None
    revoked_at_us: int | None = None

    def live(self, now_us: int) -> bool:
        """Tell whether the token is valid at this time of the database's clock."""
        if self.revoked_at_us is not None:
            return False
        return self.expires_at_us is None or now_us < self.expires_at_us


def make(name: str) -> tuple[str, str]:
    """Make a token for `name`. Return its text, to be shown once, and its hash, to be kept."""
    text = f"{_PREFIX}{name}.{secrets.token_urlsafe(32)}"
    return text, hash_of(text)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def name_of(text: str) -> str | None:
    """Return the name in the text of a token, or None if the text does not have the format."""
    name, dot, secret = text.removeprefix(_PREFIX).rpartition(".")
    looks = text.startswith(_PREFIX) and dot and secret and len(text) <= 512
    return name if looks and text.isascii() and text.isprintable() else None


def admits(token: Token | None, text: str, now_us: int) -> Caller | None:
    """Return the caller that presents `text`, or None if it has no rights.

    It is None if `token` is None, if `text` is not its text, or if it is not valid now. An unknown
    name takes as long as a wrong secret.
    """
    kept = _NOBODY if token is None else token.digest
    same = hmac.compare_digest(kept, hash_of(text))
    if token is None or not same or not token.live(now_us):
        return None
    return caller(token)


def caller(token: Token) -> Caller:
    """Return the caller that a token stands for."""
    rights = of_token(token.scopes, token.queues)
    return Caller(token.name, rights, token.digest, actor=f"token:{token.name}")


def checked(
    name: str, scopes: Collection[str], queues: Collection[str]
) -> tuple[str, tuple[Scope, ...], tuple[str, ...]]:
    """Check an operator's request for a token, and return it in the form in which it is kept.

    Raises:
        ConfigError: a scope does not exist, there is no scope or no queue, or a name or a pattern
            has other characters.
    """
    try:
        validate.name(name, "token name")
    except InvalidName as error:
        raise ConfigError(str(error)) from None
    wrong = sorted(set(scopes) - set(SCOPES))
    if wrong or not scopes:
        raise ConfigError(
            f"scopes are enqueue, consume, view and operate, got {', '.join(wrong) or 'none'}"
        )
    check_patterns(queues)
    if not queues:
        raise ConfigError("a token without queues could do nothing: give '*' for all")
    return name, tuple(scope for scope in SCOPES if scope in scopes), tuple(dict.fromkeys(queues))
