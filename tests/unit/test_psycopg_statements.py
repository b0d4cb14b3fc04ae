"""Statements that end a transaction of PostgreSQL, and those that only look so."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from late.outbox.adapters.psycopg_statements import refuse_end


@pytest.mark.parametrize(
    "query",
    [
        "commit",
        "  COMMIT AND CHAIN;",
        "/* tag=late-foreground:mail.send */ commit",
        "/* a /* b */ c */ commit",
        "/*/* a */*/ commit",
        "select 1; /* ' /* */ */ rollback",
        "/* -- */ commit",
        "-- now\nend",
        "insert into a values ('x'); commit; select 1",
        b"rollback",
        "rollback work and chain",
        "abort",
        "prepare   transaction 'x'",
        r"select E'it\'s'; commit; select 'x'",
        "select 1 -- now\r; commit",
        "select a$b$; commit; select c$b$",
        sql.SQL("commit"),
    ],
)
def test_what_ends_it_is_refused(query: object) -> None:
    with pytest.raises(psycopg.ProgrammingError, match=r"^(commit|rollback)$"):
        refuse_end(query, "commit", "rollback")


def test_a_commit_and_a_rollback_have_each_its_message() -> None:
    for query, message in (("end", "c"), ("prepare transaction 'x'", "c"), ("abort", "r")):
        with pytest.raises(psycopg.ProgrammingError, match=f"^{message}$"):
            refuse_end(query, "c", "r")


@pytest.mark.parametrize(
    "query",
    [
        "select 1",
        "insert into commit values ('; commit')",
        'select ";commit" from a',
        "rollback to savepoint a",
        "rollback to a",
        "savepoint a; release savepoint a",
        "do $$ begin perform 1; end; $$",
        "do $x$ begin perform 1; commit; end $x$",
        "select 1 -- ; commit",
        "/* a /* b */ ; commit; */ select 1",
        "select '/*'; select 1",
        "select case when true then 1 end",
        "prepare a as select 1",
        None,
    ],
)
def test_what_does_not_end_it_may_run(query: object) -> None:
    refuse_end(query, "c", "r")
