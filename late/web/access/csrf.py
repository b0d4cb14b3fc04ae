"""Protection of the page from other sites: headers, the form token, bounds of forms. Pure.

A form token is `HMAC(key, seed, caller)`. The seed is a cookie that no script can read. The key is
the deployment's, so each of its processes can check the tokens of the others. A foreign page can
set cookies for this host, because ports do not separate them. It then knows a seed, but never the
seed's token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from late.errors import LateError
from late.model.access.rights import Caller

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # `no-referrer` would make the Origin of our own forms `null`, and the Origin is checked.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
FORM_BYTES = 128 * 1024
"""Bytes of a form: the longest payload that the page shows, with several bytes per character."""
FORM_S = 10.0
"""Seconds in which a browser must send a form."""
FIELDS_MAX = 100
PATH_MAX = 500
SEED, TOKEN, SESSION, SIGN_IN = "late_seed", "late_token", "late_session", "late_signin"
"""Names of the cookies."""
_SEED_LENGTH = 43
EXPIRED = (
    "this form is of a session that is over, so nothing was done: go back, load the page again, "
    "and fill it in anew"
)


class Stale(LateError):
    """The form was made before something changed."""

    title = "Changed meanwhile"


class Expired(Stale):
    """The form is of an earlier session: before a sign-in, or before the cookie was lost."""

    title = "Session expired"


class Foreign(Stale):
    """No page of ours can have made the form."""

    title = "Form not taken"


class Gate(Protocol):
    """Admits callers, by the same rules as the API."""

    @property
    def open(self) -> bool:
        """No token is asked for; only this machine is served then."""
        ...

    @property
    def signs_in(self) -> bool:
        """There is a provider at which people sign in."""
        ...

    async def prepare(self, authorization: str | None) -> None:
        """Have what `admit` needs."""

    async def begin(self, path: str) -> tuple[str, str]:
        """Begin a sign-in that leads to `path`; return an address to go to, and a cookie."""
        ...

    async def finish(
        self, sent: Mapping[str, str], cookie: str | None, *, address: str
    ) -> tuple[str, str]:
        """End a sign-in; return the session's cookie and the path to go to."""
        ...

    async def sign_out(self, caller: Caller) -> None:
        """End a person's session."""

    async def over(self, caller: Caller) -> None:
        """Wait until the caller's token is not valid any more."""

    def check(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if the token of a caller that was admitted is over by now."""

    def admit(
        self,
        authorization: str | None,
        host: str | None,
        certificate: tuple[str, ...],
        *,
        address: str,
        session: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> Caller:
        """Return the caller; raises an error that `told` knows."""
        ...

    def check_address(self, address: str) -> None:
        """Raise an error that `told` knows if nobody may sign in from this address now."""
        ...

    def told(self, error: Exception) -> tuple[int, str]:
        """Status and message of an error, without internal details."""
        ...


def new_seed() -> str:
    """Make a seed for a browser that has none."""
    return secrets.token_urlsafe(32)


def own_path(text: str, root: str) -> str:
    """Return a path of the page, or the page's root for any other text.

    A link to a sign-in may come from anywhere. It must not lead to another site afterwards, and a
    browser takes more for an address than one would think.
    """
    plain = text.isascii() and text.isprintable() and len(text) <= PATH_MAX
    odd = any(part in text for part in ("\\", "//", "..", " "))
    return text if plain and not odd and text.startswith(root) else root


def is_seed(text: str | None) -> bool:
    """Return True if `new_seed` can have made this text."""
    return text is not None and len(text) == _SEED_LENGTH and text.isascii()


def form_token(key: bytes, seed: str, caller: str) -> str:
    """The token that a form must contain."""
    return hmac.new(key, f"page\0{seed}\0{caller}".encode(), hashlib.sha256).hexdigest()


def check_form(
    key: bytes, seed: str | None, caller: str, token: str | None, headers: Mapping[str, str]
) -> None:
    """Refuse a form that did not come from a page of ours.

    Raises:
        Foreign: the form comes from elsewhere.
        Expired: the form comes from a session that is over.
    """
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin"):
        raise Foreign("this form came from another site, so nothing was done")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        raise Foreign("this form came from another site, so nothing was done")
    if seed is None or not is_seed(seed) or token is None:
        raise Expired(EXPIRED)
    made = form_token(key, seed, caller)
    if not hmac.compare_digest(made.encode(), token.encode("utf-8", "replace")):
        raise Expired(EXPIRED)


def fields(body: bytes) -> dict[str, str]:
    """Parse a form as the browser sends it; of several fields with one name, the last counts.

    Raises:
        Foreign: it has more fields than any form here.
    """
    try:
        pairs = parse_qsl(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise Foreign("this form has more fields than any of this page") from None
    return {name: value.strip() for name, value in pairs}
