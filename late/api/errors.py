"""Errors and their codes, for every interface in one table. Pure."""

from __future__ import annotations

import msgspec

from late.api.pull.receipts import StaleReceipt, UnknownReceipt
from late.errors import (
    BatchTooLarge,
    ConfigError,
    Conflict,
    InvalidTask,
    KeyConflict,
    LateError,
    PayloadTooLarge,
    QueueFull,
    StoreError,
    UnknownTask,
)
from late.model.access.rules import Denied, Hidden


class Refused(LateError):
    """A request was refused."""

    retry_after_s: float | None = None


class BadRequest(Refused):
    """The request cannot be read, or a value in it is out of bounds."""


class NotBegun(BadRequest):
    """The answer of an identity provider is for no sign-in that this browser has begun."""


class TooLarge(Refused):
    """The body is above the limit; the rest of it was not read."""


class Unsupported(Refused):
    """The content type of the body is not JSON."""


class Unauthenticated(Refused):
    """The request has no token, or none that is valid now."""


class Forbidden(Refused):
    """The token does not allow this."""


class NotFound(Refused):
    """There is no such thing, or none that this caller may know of."""


class Unavailable(Refused):
    """Another process of this deployment, which has the task, does not answer."""


class TooMany(Refused):
    """The caller makes more requests than it may."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Code(msgspec.Struct, frozen=True):
    """The status and the word of an error for callers."""

    http: int
    grpc: str
    word: str
    """A stable word, for programs."""
    shown: bool = True
    """The message may be sent to the caller; messages of the database may not."""


_CODES: tuple[tuple[type[LateError], Code], ...] = (
    (BadRequest, Code(400, "INVALID_ARGUMENT", "bad_request")),
    (TooLarge, Code(413, "RESOURCE_EXHAUSTED", "too_large")),
    (Unsupported, Code(415, "INVALID_ARGUMENT", "unsupported_media_type")),
    (Unauthenticated, Code(401, "UNAUTHENTICATED", "unauthenticated")),
    (Forbidden, Code(403, "PERMISSION_DENIED", "forbidden")),
    (NotFound, Code(404, "NOT_FOUND", "not_found")),
    (Denied, Code(403, "PERMISSION_DENIED", "forbidden")),
    (Hidden, Code(404, "NOT_FOUND", "not_found")),
    (Unavailable, Code(503, "UNAVAILABLE", "away")),
    (TooMany, Code(429, "RESOURCE_EXHAUSTED", "too_many_requests")),
    (UnknownReceipt, Code(404, "NOT_FOUND", "unknown_receipt")),
    (StaleReceipt, Code(409, "FAILED_PRECONDITION", "stale_receipt")),
    (PayloadTooLarge, Code(413, "RESOURCE_EXHAUSTED", "payload_too_large")),
    (BatchTooLarge, Code(413, "RESOURCE_EXHAUSTED", "batch_too_large")),
    (KeyConflict, Code(409, "ALREADY_EXISTS", "key_conflict")),
    (QueueFull, Code(429, "RESOURCE_EXHAUSTED", "queue_full")),
    (UnknownTask, Code(422, "NOT_FOUND", "unknown_task")),
    (InvalidTask, Code(400, "INVALID_ARGUMENT", "invalid_task")),
    (Conflict, Code(409, "FAILED_PRECONDITION", "conflict")),
    (ConfigError, Code(400, "INVALID_ARGUMENT", "bad_request")),
    (StoreError, Code(503, "UNAVAILABLE", "unavailable", shown=False)),
)
RETRY_AFTER_S = {"away": 1.0, "queue_full": 5.0, "unavailable": 1.0}
UNEXPECTED = Code(500, "INTERNAL", "internal", shown=False)


def of_one(error: LateError, index: int, count: int) -> LateError:
    """Return the error with the place of its task, if the request has several (up to 1,000)."""
    return error if count == 1 else type(error)(f"tasks[{index}]: {error}")


def code_of(error: BaseException) -> Code:
    """The code of an error; `UNEXPECTED` for one that no code here raises on purpose."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNEXPECTED)


def message_of(error: BaseException, code: Code) -> str:
    """The message for the caller, in one line."""
    if not code.shown:
        return {
            "unavailable": "the database does not answer; of an enqueue nothing is known, "
            "so repeat it with the same unique_key and a unique_for that is longer than you try",
        }.get(code.word, "an error of the server; its log says more")
    return " ".join(str(error).split())[:500] or code.word


def retry_after_s(error: BaseException, code: Code) -> float | None:
    """Seconds after which to try again; None for errors that stay."""
    asked = getattr(error, "retry_after_s", None)
    return asked if asked is not None else RETRY_AFTER_S.get(code.word)
