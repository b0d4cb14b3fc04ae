"""Tell caches, in the transaction of a write, that values have changed."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, overload

from late.app import mistakes
from late.app.app import App
from late.app.mistakes import FORGOTTEN
from late.app.write import first, write
from late.errors import InvalidName, InvalidTask
from late.model import validation as validate
from late.model.task import TaskId
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.payload import command

KEY_MAX = 512
"""The most characters of a key."""


def checked_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return keys of a cache as a tuple.

    Raises:
        InvalidName: there is none, or one is not a text of 1 to 512 printable characters.
    """
    if isinstance(keys, str):
        raise InvalidName(f"keys of a cache are a list of texts, got {validate.shown(keys)}")
    found = tuple(keys)
    if not found:
        raise InvalidName("no key of a cache was given")
    for key in found:
        if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX or not key.isprintable():
            raise InvalidName(
                f"a key of a cache is a text of 1 to {KEY_MAX} printable characters,"
                f" got {validate.shown(key)}"
            )
    return found


@overload
def changed(app: App, tx: SyncTransaction, /, *keys: str) -> TaskId: ...
@overload
def changed(app: App, tx: AsyncTransaction, /, *keys: str) -> Coroutine[Any, Any, TaskId]: ...
def changed(app: App, tx: Any = FORGOTTEN, /, *keys: str) -> Any:
    """Write into the log that the values of `keys` have changed, through the caller's transaction.

    It is one row, whatever the number of keys. No cache of any process answers with the old values
    once it has read it. If the transaction rolls back, nothing has changed.

    Args:
        app: an app on the database of the cache.
        tx: the transaction that changes what the cache's `load` reads, as for an enqueue.
        keys: the keys of the cache, at least one.

    Returns:
        The id of the change, or an awaitable of it if `tx` is async: `cache.get(key, after=id)`.

    Raises:
        InvalidName: a key is not a text of 1 to 512 characters. Nothing was written.
        InvalidTask: the type of `tx` is not accepted, or no transaction is open.
        PayloadTooLarge: the keys take more than 1 MiB.
    """
    rows = [command.changed(checked_keys(keys))]
    try:
        written = write(app, tx, [], rows, autocommit=False)
    except InvalidTask as error:
        mistakes.check_transaction(tx, "late.cache", error, method="changed")
        raise
    return written[0] if isinstance(written, list) else first(written, "late.cache.changed")
