"""`late.watch`: one line by which a service's own transactions get tags and are recorded."""

from __future__ import annotations

from time import monotonic
from typing import Any

from late.errors import ConfigError
from late.observability import conflicts
from late.outbox import conflict_errors

_BEGUN = "late_begun"


def watch(target: Any, tag: str = "") -> None:
    """Tag the transactions of `target` from now on, and record their conflicts for `late analyze`.

    Calling it again for the same target changes the tag. It sends no request of its own.

    Args:
        target: a SQLAlchemy engine, sync or async, a psycopg connection, or a Spanner `Database`.
            A psycopg connection gets tags, and no record: its errors go to the caller.
        tag: for transactions outside a block of `late.tag`, such as the service's name.

    Raises:
        ConfigError: `target` is none of these.
    """
    tag = conflicts.clean(tag)
    # An AsyncEngine is a frame around an engine, whose events are the same.
    engine = getattr(target, "sync_engine", target)
    module = type(engine).__module__.partition(".")[0]
    if module == "sqlalchemy" and hasattr(engine, "dialect"):
        _watch_engine(engine, tag)
    elif hasattr(engine, "pgconn"):
        from late.outbox.adapters.psycopg_tags import tagged

        tagged(engine, tag)
    elif hasattr(engine, "spanner_api"):
        _watch_spanner(engine, tag)
    else:
        raise ConfigError(
            f"late.watch takes a SQLAlchemy engine, a psycopg connection or a Spanner Database,"
            f" and not a {type(target).__name__}"
        )


def _watch_spanner(database: Any, tag: str) -> None:
    from late.store.spanner import conflict_watch

    conflict_watch.watch(database.spanner_api, tag)


def _watch_engine(engine: Any, tag: str) -> None:
    from sqlalchemy import event

    known = getattr(engine, "_late_tag", None)
    engine._late_tag = tag
    if known is not None:
        return
    if engine.dialect.name.startswith("spanner"):

        @event.listens_for(engine, "connect")
        def connected(driver: Any, _: Any) -> None:
            _watch_spanner(driver.database, engine._late_tag)

        return

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.info[_BEGUN] = monotonic()

    @event.listens_for(engine, "handle_error")
    def failed(context: Any) -> None:
        info = context.connection.info if context.connection is not None else {}
        conflict_errors.note(
            context.original_exception,
            conflicts.current() or engine._late_tag,
            info.get(_BEGUN, monotonic()),
            statement=context.statement or "",
        )

    if engine.dialect.name in ("postgresql", "cockroachdb"):

        @event.listens_for(engine, "before_cursor_execute", retval=True)
        def before(
            _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any
        ) -> tuple[str, Any]:
            found = conflicts.current() or engine._late_tag
            return (conflicts.comment(found) + statement if found else statement), parameters
