"""The table of PostgreSQL's error codes is whole, and says of each what it must."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from late.errors import (
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
)
from late.schema.engine import translate as translate_control
from late.schema.sqlstates import SQLSTATES, error_of
from late.store.postgres.connection import translate

KNOWN = {"25P04", *(str(kind.sqlstate) for kind in errors._sqlcodes.values())}
"""The codes of errors in all versions of PostgreSQL that psycopg knows; 25P04 is of 17."""
TRANSIENT = {
    *("08000", "08003", "08006", "08P01", "25006", "25P02", "25P03", "25P04", "26000", "40001"),
    *("40003", "40P01", "42P05", "53100", "53200", "53300", "53400", "54000", "55000", "55006"),
    *("55P03", "57014", "57P01", "57P02", "57P03", "57P05", "58000", "58030", "72000", "XX000"),
}
FINAL = {
    "28000": StoreRefused,
    "28P01": StoreRefused,
    "3D000": StoreRefused,
    "42501": StoreRefused,
    "3F000": SchemaMismatch,
    "42703": SchemaMismatch,
    "42883": SchemaMismatch,
    "42P01": SchemaMismatch,
}
BUGS = ("0A000", "22P02", "22003", "23502", "23505", "25P01", "42601", "54001", "P0001", "XX001")


def coded(state: str) -> psycopg.Error:
    error = psycopg.OperationalError("something\nDETAIL: a payload")
    error.sqlstate = state
    return error


def test_every_code_has_a_class_in_the_table() -> None:
    assert [state for state in KNOWN if not {state, state[:2]} & set(SQLSTATES)] == []


def test_the_table_has_no_line_too_many() -> None:
    classes = {state[:2] for state in KNOWN}
    assert {state[:2] for state in SQLSTATES} <= classes
    for state, (kind, reason) in SQLSTATES.items():
        assert reason, state
        if len(state) == 5:
            assert state in KNOWN, state
            assert SQLSTATES[state[:2]][0] is not kind, f"{state} is as its class"


@pytest.mark.parametrize("state", sorted(TRANSIENT))
def test_a_passing_trouble_is_tried_again(state: str) -> None:
    for found in (translate(coded(state)), translate_control(coded(state))):
        assert type(found) in (StoreUnavailable, TransactionAborted)
        assert "payload" not in str(found)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_somebody_has_to_mend_is_final(state: str) -> None:
    assert type(translate(coded(state))) is FINAL[state]
    assert type(translate_control(coded(state))) is FINAL[state]


@pytest.mark.parametrize(("state", "said"), [("25006", "a standby"), ("42501", "late roles sql")])
def test_a_command_says_what_helps(state: str, said: str) -> None:
    assert said in str(translate_control(coded(state)))


@pytest.mark.parametrize("state", BUGS)
def test_a_bug_is_final(state: str) -> None:
    assert type(translate(coded(state))) is StoreError


def test_an_unknown_code_is_a_bug() -> None:
    assert error_of("ZZ999") is StoreError
    assert error_of(None) is StoreError
