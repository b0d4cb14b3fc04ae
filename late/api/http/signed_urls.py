"""URLs by which whoever has one puts one kind of task, and nothing else.

A URL is made by somebody who has a token for the queue, and carries the token's name and not its
secret. The key of the signature is the hash of the token that the server keeps, so to make a URL
takes no request. A URL ends with its token: at the time of the token, or when it is revoked.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from late.errors import ConfigError
from late.model import validation as validate
from late.model.access import tokens

EXPIRES_S_MAX = 7 * 86_400
PAYLOAD_BYTES = 4 * 1024
"""A payload in a URL; the head of a request has 32 KiB, and a byte takes up to three."""
_LABEL = "late.url.1"
_UNKNOWN = secrets.token_hex(32)
"""The key for tokens that do not exist, so that they take as long as others. Nobody knows it."""


class SignedPut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a signed URL."""

    name: str
    token: str
    expires: int
    """Seconds since the Unix epoch."""
    max_bytes: int | None = None
    once: str | None = None
    """The key of a single use; URLs of one token with the same key share the use."""
    payload: str | None = None
    """The payload as JSON; the request then has no body."""
    signature: str = ""


def sign_url(
    server: str,
    token: str,
    queue: str,
    name: str,
    *,
    expires_s: float = 3_600,
    payload: Mapping[str, Any] | None = None,
    max_bytes: int | None = None,
    once: bool | str = False,
    now_s: float | None = None,
) -> str:
    """Return a URL by which whoever has it may put tasks `name` into `queue`, with a POST.

    It is made without a request. The server must be started with `--signed-urls`.

    Args:
        server: where `late serve` is reached: `https://HOST[:PORT]`.
        token: the text of a token with the scope `enqueue` for the queue.
        expires_s: the time for which it is valid, at most seven days.
        payload: the arguments; without them they are the JSON object of the request's body.
        max_bytes: the most bytes of that body.
        once: it puts one task only. URLs of one token with the same text share the use.
        now_s: seconds since the Unix epoch; the time now if None.

    Raises:
        ConfigError: a value is wrong. The message does not show the token.
        InvalidName: `queue`, `name` or `once` is no name.
    """
    token_name = tokens.name_of(token)
    if token_name is None:
        raise ConfigError("a URL is signed with a token: late.NAME.SECRET")
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"the server is http[s]://HOST[:PORT], got {validate.shown(server)}")
    if not 1 <= expires_s <= EXPIRES_S_MAX:
        raise ConfigError(f"a signed URL is valid for 1..{EXPIRES_S_MAX} seconds")
    if payload is not None and max_bytes is not None:
        raise ConfigError("give a payload, or the bytes that a body may have, not both")
    if max_bytes is not None and max_bytes < 2:
        raise ConfigError("a body has 2 bytes at least: {}")
    text = None if payload is None else msgspec.json.encode(dict(payload)).decode()
    if text is not None and len(text.encode()) > PAYLOAD_BYTES:
        raise ConfigError(f"a payload in a URL has {PAYLOAD_BYTES} bytes at most")
    asked = SignedPut(
        name=validate.name(name, "task name"),
        token=token_name,
        expires=int((time.time() if now_s is None else now_s) + expires_s),
        max_bytes=max_bytes,
        once=_use(once),
        payload=text,
    )
    queue = validate.queue(queue)
    fields = msgspec.structs.asdict(asked)
    fields["signature"] = _signature(tokens.hash_of(token), queue, asked)
    query = {key: value for key, value in fields.items() if value is not None}
    return f"{server.rstrip('/')}/v1/queues/{quote(queue)}/put?{urlencode(query)}"


def _use(once: bool | str) -> str | None:
    if isinstance(once, bool):
        return secrets.token_urlsafe(16) if once else None
    return validate.name(once, "once")


def is_signed(digest: str | None, queue: str, asked: SignedPut) -> bool:
    """Tell whether this is what the holder of a token signed, in a time that tells nothing.

    Args:
        digest: the hash of the token; None if there is no token of the name, or it has no secret.
        queue: a valid name, as those in `asked` are.
    """
    wanted = _signature(digest or _UNKNOWN, queue, asked)
    return hmac.compare_digest(wanted.encode(), asked.signature.encode())


def _signature(digest: str, queue: str, asked: SignedPut) -> str:
    # No name has a line break and the payload is the last, so no two requests are one text.
    numbers = ["" if each is None else str(each) for each in (asked.expires, asked.max_bytes)]
    lines = [_LABEL, "POST", queue, asked.name, asked.token, *numbers, asked.once or ""]
    text = "\n".join([*lines, asked.payload or ""])
    return hmac.digest(bytes.fromhex(digest), text.encode(), "sha256").hex()
