"""One moment of a PostgreSQL database for several reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from late.errors import ConfigError
from late.schema.engine import make_engine, reading


@contextmanager
def exported(url: str) -> Iterator[str]:
    """The name of a snapshot, for the option `snapshot`; good until the block ends.

    A transaction stays open for that long, which holds back VACUUM.

    Raises:
        ConfigError: another database; none but PostgreSQL can hand its snapshot to others.
    """
    engine = make_engine(url)
    try:
        if engine.dialect.name != "postgresql":
            raise ConfigError(f"{engine.dialect.name} cannot hand a snapshot to other connections")
        with reading(engine) as connection:
            yield str(connection.execute(text("select pg_export_snapshot()")).scalar_one())
    finally:
        engine.dispose()
