"""Pop receipts: a consumer sends one back with its answer. Pure.

A receipt names one hand-out of one attempt. It is sealed with a key that only the processes of
this deployment have, so nobody can invent one, change one, or guess another consumer's. It is
bound to the group, shard, epoch, task, attempt and hand-out, and to a moment at which it expires.
An answer that comes after the task went to somebody else is therefore refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable

import msgspec

from late.errors import TaskError

KEY_BYTES = 32
_MAC_BYTES = 16
_CHARS_MAX = 1_024
_LABEL = b"late.receipt.1"


class UnknownReceipt(TaskError):
    """The receipt is not of this deployment, or not of this caller."""


class StaleReceipt(TaskError):
    """The receipt has expired, was answered before, or its task is elsewhere by now."""


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a receipt."""

    worker: str
    """The process that has the attempt."""
    queue: str
    group: str
    shard_id: int
    epoch: int
    task_id: str
    attempt: int
    serial: int
    """The number of the hand-out, in that process."""
    expires_us: int
    """The moment by the database's clock beyond which no extension reaches."""

    @property
    def identity(self) -> tuple[str, int, int, str, int]:
        """The identity of the attempt, as `late.dispatcher.pull.queue.identity` makes it."""
        return self.group, self.shard_id, self.epoch, self.task_id, self.attempt


def seal(key: bytes, receipt: Receipt) -> str:
    """Return the receipt as text of URL-safe characters."""
    body = msgspec.msgpack.encode(receipt)
    return base64.urlsafe_b64encode(_mac(key, body) + body).rstrip(b"=").decode()


def unseal(keys: Iterable[bytes], text: str) -> Receipt:
    """Return the receipt that `seal` was given.

    Raises:
        UnknownReceipt: `seal` did not make this text with one of the keys. The message gives no
            reason.
    """
    try:
        if len(text) > _CHARS_MAX:
            raise UnknownReceipt("unknown receipt")
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        body = raw[_MAC_BYTES:]
        for key in keys:
            if hmac.compare_digest(raw[:_MAC_BYTES], _mac(key, body)):
                receipt = msgspec.msgpack.decode(body, type=Receipt)
                # Several texts decode to the same bytes. Only the one that was given out is valid.
                if seal(key, receipt) == text:
                    return receipt
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        pass
    raise UnknownReceipt("unknown receipt")


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _LABEL + body, "sha256")[:_MAC_BYTES]
