"""Pop receipts: what a consumer answers by. Pure.

A receipt names one hand-out of one attempt, and is sealed with a key that only the processes of
this deployment have: nobody can make one up, change one, or guess another's. It is bound to the
group, shard, epoch, task, attempt and hand-out, and to a moment after which it is worth nothing,
so an answer that comes after the task went to somebody else is refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac

import msgspec

from late.errors import TaskError

KEY_BYTES = 32
_MAC_BYTES = 16
_CHARS_MAX = 1_024
_LABEL = b"late.receipt.1"


class UnknownReceipt(TaskError):
    """Not a receipt of this deployment, or not one of this caller's."""


class StaleReceipt(TaskError):
    """Its time is over, it was answered before, or the task has moved on."""


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """What the text says."""

    worker: str
    """Which process has the attempt."""
    queue: str
    group: str
    shard_id: int
    epoch: int
    task_id: str
    attempt: int
    serial: int
    """Number of the hand-out, in that process."""
    expires_us: int
    """By the database's clock: no extension reaches beyond it."""

    @property
    def identity(self) -> tuple[str, int, int, str, int]:
        """As `late.dispatcher.pull.queue.identity` has it."""
        return self.group, self.shard_id, self.epoch, self.task_id, self.attempt


def seal(key: bytes, receipt: Receipt) -> str:
    """The receipt as text of URL-safe characters."""
    body = msgspec.msgpack.encode(receipt)
    return base64.urlsafe_b64encode(_mac(key, body) + body).rstrip(b"=").decode()


def unseal(key: bytes, text: str) -> Receipt:
    """What `seal` was given.

    Raises:
        UnknownReceipt: anything that `seal` did not make with this key; nothing more is said.
    """
    try:
        if len(text) > _CHARS_MAX:
            raise UnknownReceipt("unknown receipt")
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        body = raw[_MAC_BYTES:]
        if hmac.compare_digest(raw[:_MAC_BYTES], _mac(key, body)):
            receipt = msgspec.msgpack.decode(body, type=Receipt)
            # Several texts decode to the same bytes: only the one that was given out counts.
            if seal(key, receipt) == text:
                return receipt
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        pass
    raise UnknownReceipt("unknown receipt")


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _LABEL + body, "sha256")[:_MAC_BYTES]
