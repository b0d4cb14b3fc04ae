"""Errors of the Spanner client as those of `late.errors`, in one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from late.errors import (
    LateError,
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
)

CLASSES: tuple[tuple[type[BaseException], type[StoreError]], ...] = (
    (api.Aborted, TransactionAborted),
    # Unknown outcomes: the commit may or may not have happened. Settling is idempotent by its id,
    # so that repeating the call finds out.
    (api.ServiceUnavailable, StoreUnavailable),
    (api.DeadlineExceeded, StoreUnavailable),
    (api.Unknown, StoreUnavailable),
    (api.Cancelled, StoreUnavailable),
    (api.InternalServerError, StoreUnavailable),
    # Over a quota: as everywhere, later may be fine.
    (api.ResourceExhausted, StoreUnavailable),
    (api.RetryError, StoreUnavailable),
    (api.PermissionDenied, StoreRefused),
    (api.Unauthenticated, StoreRefused),
    (auth.DefaultCredentialsError, StoreRefused),
    (auth.TransportError, StoreUnavailable),
    (auth.RefreshError, StoreRefused),
    (api.GoogleAPICallError, StoreError),
    (grpc.RpcError, StoreUnavailable),
    (auth.GoogleAuthError, StoreRefused),
)
"""The first class that fits decides, after `_special`."""

FOREIGN = (api.GoogleAPIError, grpc.RpcError, auth.GoogleAuthError)


def translate(error: BaseException) -> StoreError:
    """The error of `late` that says the same. Pure; a test walks the whole map."""
    message = (str(getattr(error, "message", "")) or str(error) or type(error).__name__)[:300]
    if isinstance(error, api.RetryError) and error.cause is not None:
        # Its own words are about the time that is over, not about what went wrong until then.
        message = f"Spanner does not answer: {getattr(error.cause, 'message', error.cause)}"[:300]
    special = _special(error, message)
    if special is not None:
        return special
    for foreign, ours in CLASSES:
        if isinstance(error, foreign):
            return ours(message)
    return StoreError(message)


def _special(error: BaseException, message: str) -> StoreError | None:
    """Where the status code alone does not tell: what is it that was not found?"""
    if not isinstance(error, api.NotFound | api.InvalidArgument | api.FailedPrecondition):
        return None
    if "Session not found" in message or "Transaction not found" in message:
        # A server that came back without its memory (the emulator), or an expired session: the
        # client makes new ones.
        return StoreUnavailable(message)
    if "Database not found" in message or "Instance not found" in message:
        return StoreRefused(
            f"{message}: check the project, instance and database in the URL, "
            "or make the database and run `late migrate URL`"
        )
    if "late_" in message and ("not found" in message or "Unrecognized name" in message):
        return SchemaMismatch(f"the schema of late is missing or damaged ({message})")
    return None


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of the client into those of `late.errors`."""
    try:
        yield
    except LateError:
        raise
    except FOREIGN as error:
        raise translate(error) from error
