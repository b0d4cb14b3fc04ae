"""What keeps others out of the page: headers, the form token, bounds of forms. Pure.

A form token is `HMAC(key, seed, caller)`: the seed is a cookie that no script can read, the key is
the deployment's own, so any of its processes can check what another has made. A foreign page that
sets cookies for this host (ports do not separate them) knows a seed, and never its token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from late.errors import LateError
from late.model.tokens import Caller

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # `no-referrer` would make the Origin of our own forms `null`, and it is checked.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
FORM_BYTES = 128 * 1024
"""A payload as long as the page shows, each character of which may take several as it is sent."""
FORM_S = 10.0
"""How long a browser may take to send one."""
FIELDS_MAX = 100
SEED, TOKEN = "late_seed", "late_token"
"""Names of the cookies."""
_SEED_LENGTH = 43
EXPIRED = (
    "this form is of a session that is over, so nothing was done: go back, load the page again, "
    "and fill it in anew"
)


class Stale(LateError):
    """A form that was filled in before something changed."""

    title = "Changed meanwhile"


class Expired(Stale):
    """A form of another session: of before a sign-in, or of before the page's cookie was lost."""

    title = "Session expired"


class Foreign(Stale):
    """A form that no page of ours can have made."""

    title = "Form not taken"


class Gate(Protocol):
    """Lets callers in, as the interfaces beside the page do."""

    @property
    def open(self) -> bool:
        """Whether nobody is asked who he is: then only this machine is served."""
        ...

    def admit(
        self, authorization: str | None, host: str | None, certificate: tuple[str, ...]
    ) -> Caller:
        """Who asks; raises an error that `told` knows."""
        ...

    def told(self, error: Exception) -> tuple[int, str]:
        """Status and message of an error, without what must stay inside."""
        ...


def new_seed() -> str:
    """What a browser without one gets."""
    return secrets.token_urlsafe(32)


def is_seed(text: str | None) -> bool:
    """Whether it can have been made by `new_seed`."""
    return text is not None and len(text) == _SEED_LENGTH and text.isascii()


def form_token(key: bytes, seed: str, caller: str) -> str:
    """What a form must carry."""
    return hmac.new(key, f"page\0{seed}\0{caller}".encode(), hashlib.sha256).hexdigest()


def check_form(
    key: bytes, seed: str | None, caller: str, token: str | None, headers: Mapping[str, str]
) -> None:
    """Refuse a form that did not come from a page of ours.

    Raises:
        Foreign: it comes from elsewhere.
        Expired: it comes from a session that is over.
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
    """A form as the browser sends it; the last of several fields of one name counts.

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
