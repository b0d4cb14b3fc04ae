"""An app whose tasks belong to subjects, and somebody who has its keys and the whole database."""

from __future__ import annotations

import base64
from typing import Any

from sqlalchemy import inspect, select, text, update

import late
from late.payload.codec import Encrypted
from late.payload.subject_keys import SubjectKeys
from late.schema.engine import make_engine, reading, writing
from late.schema.tables import subject_key

OLD = {"k1": b"0123456789abcdef" * 2}
BOTH = OLD | {"k2": bytes(range(32))}


def owned_app(
    url: str, keys: dict[str, bytes] = OLD, current: str = "k1"
) -> tuple[late.App, list[int]]:
    """An app with the tasks `invoice` (def), `mail` (async def) and `broken`, and what has run."""
    app = late.App(url, codec=Encrypted(keys=keys, current=current))
    ran: list[int] = []

    @app.task(name="invoice")
    def invoice(cents: int) -> None:
        ran.append(cents)

    @app.task(name="mail", retry=late.Retry(max_attempts=1))
    async def mail(cents: int) -> None:
        ran.append(cents)

    @app.task(name="broken", retry=late.Retry(base=0.5, max_attempts=9, jitter="none"))
    def broken(cents: int) -> None:
        raise ValueError(f"Ada Lovelace has {cents}")

    return app, ran


def ring(app: late.App) -> SubjectKeys:
    codec: Any = app.codec
    found: SubjectKeys = codec.subjects
    return found


def later(app: late.App) -> None:
    """Let the time be over for which a process keeps keys."""
    ring(app)._kept.clear()


def keys_in(url: str) -> dict[str, str | None]:
    """The wrapped key of each subject's id."""
    engine = make_engine(url)
    with reading(engine) as connection:
        rows = connection.execute(select(subject_key.c.subject, subject_key.c.wrapped)).all()
    engine.dispose()
    return {row.subject: row.wrapped for row in rows}


def put_key(url: str, subject: str, wrapped: str) -> None:
    """Write a key, as somebody can who has every right on the table."""
    engine = make_engine(url)
    with writing(engine) as connection:
        mine = subject_key.c.subject == subject
        connection.execute(update(subject_key).where(mine).values(wrapped=wrapped))
    engine.dispose()


def everything(url: str) -> set[bytes]:
    """Every value of every table, as bytes, and what it is in base64."""
    engine = make_engine(url)
    found: set[bytes] = set()
    names = [name for name in inspect(engine).get_table_names() if name.startswith("late_")]
    with reading(engine) as connection:
        for name in names:
            for row in connection.execute(text(f"select * from {name}")):
                for value in row:
                    raw = value if isinstance(value, bytes) else str(value).encode()
                    found.add(raw)
                    try:
                        found.add(base64.b64decode(raw, validate=True))
                    except ValueError:
                        continue
    engine.dispose()
    return found
