"""The map from errors of the Spanner client to those of `late.errors`."""

from __future__ import annotations

import os
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
from late.schema.spanner.address import HOST_VARIABLE

CLASSES: tuple[tuple[type[BaseException], type[StoreError], str], ...] = (
    (api.Aborted, TransactionAborted, "another transaction has its locks"),
    (api.ServiceUnavailable, StoreUnavailable, "the outcome is unknown"),
    (api.DeadlineExceeded, StoreUnavailable, "the outcome is unknown"),
    (api.Unknown, StoreUnavailable, "the outcome is unknown"),
    (api.Cancelled, StoreUnavailable, "the outcome is unknown"),
    (api.InternalServerError, StoreUnavailable, "a fault of the service; the outcome is unknown"),
    (api.ResourceExhausted, StoreUnavailable, "a quota is used up"),
    (api.RetryError, StoreUnavailable, "the client has given up its own tries"),
    (api.PermissionDenied, StoreRefused, "somebody has to give the permission"),
    (api.Unauthenticated, StoreRefused, "somebody has to give the credentials"),
    (api.NotFound, StoreError, "a row or an index that is not there; see `_special`"),
    (api.AlreadyExists, StoreError, "a row that is there, when the call had looked twice"),
    (api.InvalidArgument, StoreError, "a statement or a size that Spanner never takes"),
    (api.FailedPrecondition, StoreError, "a row that the schema does not take"),
    (api.OutOfRange, StoreError, "a value that the type does not take"),
    (api.MethodNotImplemented, StoreError, "this service does not have it"),
    (api.DataLoss, StoreError, "corrupted data: a repeat might do harm"),
    (auth.DefaultCredentialsError, StoreRefused, "somebody has to give the credentials"),
    (auth.TransportError, StoreUnavailable, "the service of credentials does not answer"),
    (auth.RefreshError, StoreRefused, "somebody has to renew the credentials"),
    (api.GoogleAPICallError, StoreError, "a code that is not among these"),
    (grpc.RpcError, StoreUnavailable, "the connection"),
    (auth.GoogleAuthError, StoreRefused, "somebody has to give the credentials"),
)
"""The map with its reasons, after `_special`: the first class that fits decides. Where the outcome
is unknown a settlement can be repeated, because it is known by its id."""

FOREIGN = (api.GoogleAPIError, grpc.RpcError, auth.GoogleAuthError)


def translate(error: BaseException) -> StoreError:
    """Return the error of `late` with the same meaning. A test checks the whole map.

    It changes nothing, and reads the emulator's address from the environment.
    """
    message = (str(getattr(error, "message", "")) or str(error) or type(error).__name__)[:300]
    if isinstance(error, api.RetryError) and error.cause is not None:
        # Its own message is about the time limit, not about the error before it.
        message = f"Spanner does not answer: {getattr(error.cause, 'message', error.cause)}"[:300]
    if isinstance(error, api.DeadlineExceeded):
        # Whoever reads it needs to know which server it is that is slow or away.
        host = os.environ.get(HOST_VARIABLE) or "Spanner"
        message = f"{host} does not answer in time: {message}"[:300]
    special = _special(error, message)
    if special is not None:
        return special
    for foreign, ours, _ in CLASSES:
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
