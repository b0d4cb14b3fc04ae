"""The map from errors of the Spanner client to those of `late.errors`."""

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
    # The outcome is unknown: the commit may or may not have happened. A settlement is idempotent by
    # its id, so the call can be repeated.
    (api.ServiceUnavailable, StoreUnavailable),
    (api.DeadlineExceeded, StoreUnavailable),
    (api.Unknown, StoreUnavailable),
    (api.Cancelled, StoreUnavailable),
    (api.InternalServerError, StoreUnavailable),
    # A quota is used up; a later try may succeed.
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
"""The map, after `_special`: the first class that fits decides."""

FOREIGN = (api.GoogleAPIError, grpc.RpcError, auth.GoogleAuthError)


def translate(error: BaseException) -> StoreError:
    """Return the error of `late` with the same meaning. Pure; a test checks the whole map."""
    message = (str(getattr(error, "message", "")) or str(error) or type(error).__name__)[:300]
    if isinstance(error, api.RetryError) and error.cause is not None:
        # Its own message is about the time limit, not about the error before it.
        message = f"Spanner does not answer: {getattr(error.cause, 'message', error.cause)}"[:300]
    special = _special(error, message)
    if special is not None:
        return special
    for foreign, ours in CLASSES:
        if isinstance(error, foreign):
            return ours(message)
    return StoreError(message)


def _special(error: BaseException, message: str) -> StoreError | None:
    """Return the error for a status code whose meaning depends on the message, else None."""
    if not isinstance(error, api.NotFound | api.InvalidArgument | api.FailedPrecondition):
        return None
    if "Session not found" in message or "Transaction not found" in message:
        # The emulator was restarted and has lost its sessions, or the session has expired. The
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
    """Raise the errors of the client as those of `late.errors`."""
    try:
        yield
    except LateError:
        raise
    except FOREIGN as error:
        raise translate(error) from error
