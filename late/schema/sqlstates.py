"""The meaning of PostgreSQL's error codes (SQLSTATE), for every connection of `late`. Pure.

Three meanings:

- **transient**: the same call may succeed later (`StoreUnavailable`: the connection or the server;
  `TransactionAborted`: the transaction);
- **final**: somebody has to act first (`StoreRefused`, `SchemaMismatch`);
- **a bug**, of ours or of who changed the tables by hand (`StoreError`).

Source: Appendix A of the PostgreSQL manual, versions 13 to 18; CockroachDB uses the same codes.
"""

from __future__ import annotations

from late.errors import (
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
)

Meaning = tuple[type[StoreError], str]

SQLSTATES: dict[str, Meaning] = {
    "02": (StoreError, "no data: `late` asks for none by statements that report this"),
    "03": (StoreError, "of embedded SQL"),
    "08": (StoreUnavailable, "no connection; PgBouncer gives 08P01 where its server is away"),
    "09": (StoreError, "of a trigger"),
    "0A": (StoreError, "this server does not have it"),
    "0B": (StoreError, "of transactions that begin others"),
    "0F": (StoreError, "of large objects"),
    "0L": (StoreError, "of GRANT"),
    "0P": (StoreError, "of SET ROLE"),
    "0Z": (StoreError, "of a function's diagnostics"),
    "10": (StoreError, "of XQuery"),
    "20": (StoreError, "of a function's CASE"),
    "21": (StoreError, "a subquery has more than one row"),
    "22": (StoreError, "a value that the type does not take"),
    "23": (StoreError, "a row that a constraint does not take"),
    "24": (StoreError, "of SQL cursors"),
    "25": (StoreError, "a statement that the transaction does not allow"),
    "25006": (StoreUnavailable, "read-only for now: a fail-over, or an operator's brake"),
    "25P02": (TransactionAborted, "an earlier statement of the transaction has failed"),
    "25P03": (StoreUnavailable, "idle_in_transaction_session_timeout ends the connection"),
    "25P04": (StoreUnavailable, "transaction_timeout ends the connection (17 and later)"),
    "26": (TransactionAborted, "a prepared statement that a pooler's other server does not have"),
    "27": (StoreError, "of a trigger"),
    "28": (StoreRefused, "no such role, or a wrong password"),
    "2B": (StoreError, "of DROP ROLE"),
    "2D": (StoreError, "of transactions in functions"),
    "2F": (StoreError, "of a function in SQL"),
    "34": (StoreError, "of SQL cursors"),
    "38": (StoreError, "of a function outside of the database"),
    "39": (StoreError, "of a function outside of the database"),
    "3B": (StoreError, "of savepoints"),
    "3D": (StoreRefused, "no such database"),
    "3F": (SchemaMismatch, "no such schema"),
    "40": (TransactionAborted, "a deadlock, or a serialization failure"),
    "40003": (StoreUnavailable, "it is not known whether the commit has happened"),
    "42": (StoreError, "a statement that the server does not understand"),
    "42501": (StoreRefused, "no permission"),
    "42703": (SchemaMismatch, "no such column"),
    "42883": (SchemaMismatch, "no such function"),
    "42P01": (SchemaMismatch, "no such table"),
    "42P05": (TransactionAborted, "a prepared statement that a pooler's other server has already"),
    "44": (StoreError, "of views"),
    "53": (StoreUnavailable, "the disk, the memory or the connections are used up"),
    "54": (StoreError, "a statement that is too large"),
    "54000": (StoreUnavailable, "no more transaction ids: an operator has to vacuum"),
    "55": (StoreError, "an object that is not in the state for it"),
    "55000": (StoreUnavailable, "the server recovers, or is a standby"),
    "55006": (TransactionAborted, "the object is in use"),
    "55P03": (TransactionAborted, "a lock time-out"),
    "57": (StoreUnavailable, "the server starts, stops, or an operator ends the connection"),
    "57014": (TransactionAborted, "a statement time-out, or a cancel"),
    "58": (StoreUnavailable, "an input or output error of the server"),
    "72": (TransactionAborted, "old_snapshot_threshold (16 and earlier): a new one is taken"),
    "F0": (StoreUnavailable, "the server's configuration files"),
    "HV": (StoreError, "of foreign tables"),
    "P0": (StoreError, "raised by a function, such as a trigger on the tables of `late`"),
    "XX": (StoreError, "corrupted data or indexes (XX001, XX002): a repeat might do harm"),
    "XX000": (TransactionAborted, "inside of the server, such as a row that changed meanwhile"),
}
"""By state, or by its first two characters, its class: the error of `late`, and the reason."""


def error_of(state: str | None) -> type[StoreError]:
    """Return the error for a SQLSTATE; `StoreError` for one that is not known, or None."""
    if not state:
        return StoreError
    kind, _ = SQLSTATES.get(state) or SQLSTATES.get(state[:2]) or (StoreError, "")
    return kind
