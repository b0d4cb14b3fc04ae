"""The signature of a pushed HTTP request: made by the worker, checked by who gets it. Pure.

Source: the Standard Webhooks specification, https://www.standardwebhooks.com, its symmetric
scheme `v1`: HMAC-SHA256 over `id.timestamp.body`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence

from late.errors import ConfigError, TaskError

PREFIX = "whsec_"
KEY_BYTES = (24, 64)
TOLERANCE_S = 300.0
_SIGNATURES_MAX = 16


class BadSignature(TaskError):
    """The request is not signed with any of the secrets, or too long ago."""


def key(secret: str, what: str = "webhook secret") -> bytes:
    """The key that `secret`, `whsec_` and base64, stands for.

    Raises:
        ConfigError: it is not of that form, or not of 24..64 bytes. The message does not show it.
    """
    try:
        found = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{what} is not whsec_ and base64") from None
    least, most = KEY_BYTES
    if not least <= len(found) <= most:
        raise ConfigError(f"{what} must be of {least}..{most} bytes, it has {len(found)}")
    return found


def sign(keys: Sequence[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for every key, so that the other side may
    change to a new one whenever it likes.

    `message_id` has no full stop, which is what separates the parts.
    """
    assert "." not in message_id
    return " ".join(_signature(each, message_id, str(timestamp_s), body) for each in keys)


def verify(
    headers: Mapping[str, str],
    body: bytes,
    *secrets: str,
    now_s: float | None = None,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """Check a request's signature before its body is read as anything.

    Args:
        headers: of the request; names in any case.
        body: its bytes as they came.
        secrets: `whsec_...`, those that may have signed.
        now_s: seconds since the Unix epoch; the time now if None.
        tolerance_s: how far the request's time may be from it.

    Returns:
        The request's id: the same for every attempt of a task, a key for idempotency.

    Raises:
        BadSignature: a header is missing, the time is off, or no signature fits.
        ConfigError: a secret is none.
    """
    if now_s is None:
        import time

        now_s = time.time()
    found = {name.lower(): value for name, value in headers.items()}
    message_id = found.get("webhook-id", "")
    timestamp = found.get("webhook-timestamp", "")
    if not message_id or not timestamp.isascii() or not timestamp.isdigit():
        raise BadSignature("webhook-id or webhook-timestamp is missing")
    if len(timestamp) > 12 or abs(now_s - int(timestamp)) > tolerance_s:
        raise BadSignature("the time of the request is too far from now")
    given = found.get("webhook-signature", "").split(" ")[:_SIGNATURES_MAX]
    fits = False
    for secret in secrets:
        wanted = _signature(key(secret), message_id, timestamp, body).encode()
        for each in given:  # all of them, so that the time taken says nothing
            fits |= hmac.compare_digest(wanted, each.encode())
    if not fits:
        raise BadSignature("no signature fits")
    return message_id


def _signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
