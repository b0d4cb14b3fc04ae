"""Sessions of the page: cookies that this deployment has signed. Pure.

Every process of the deployment has the key, so a session is good at each of them, and nothing is
kept for it. A session holds only those claims that a rule is about: its rights are those of the
rules of now.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Any, TypeVar

import msgspec

from late.api.identity.roles import Claim

T = TypeVar("T")
COOKIE_BYTES = 3_800
"""A browser takes 4 KiB, with the cookie's name and its attributes."""


class Session(msgspec.Struct, frozen=True):
    """One signed-in person."""

    id: str
    issuer: str
    subject: str
    name: str
    """The name for people and for the audit."""
    claims: tuple[Claim, ...]
    expires_us: int

    @property
    def key(self) -> str:
        """Return its name where others can read it: nobody can make the cookie of that."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:32]


class SignIn(msgspec.Struct, frozen=True):
    """A sign-in that has begun: what only the browser that began it can show."""

    state: str
    nonce: str
    verifier: str
    path: str
    """The page to go to afterwards."""
    expires_us: int


class Seal:
    """Signs values for cookies.

    Args:
        key: `form_key` of `late_secret`. Each use derives a key of its own from it.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, value: Session | SignIn) -> str:
        """Return the text of a value."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=")
        return f"{body.decode()}.{self._mark(type(value), body)}"

    def open(self, text: str | None, kind: type[T], now_us: int) -> T | None:
        """Return the value of a text; None if nobody here has signed it, or its time is over."""
        body, _, mark = (text or "").partition(".")
        if not text or len(text) > 2 * COOKIE_BYTES or not text.isascii():
            return None
        if not hmac.compare_digest(self._mark(kind, body.encode()), mark):
            return None
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            value: Any = msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            return None  # of another version
        return value if now_us < value.expires_us else None

    def _mark(self, kind: type[Any], body: bytes) -> str:
        key = hmac.new(self._key, f"cookie\0{kind.__name__}".encode(), hashlib.sha256).digest()
        return hmac.new(key, body, hashlib.sha256).hexdigest()


def new_text() -> str:
    """A text of 256 random bits."""
    return secrets.token_urlsafe(32)
