"""A cache of values of the business database, which the log keeps true.

    from late.cache import Cache, changed

    cache = Cache(app, load)  # load(connection, keys) -> {key: value}
    cache.get("trip:17")

    with Session(engine) as session, session.begin():
        session.get(Trip, 17).state = "paid"
        change = changed(app, session, "trip:17")
    cache.get("trip:17", after=change)

See `docs/cache.md`.
"""

from late.cache.cache import Cache, Snapshot, Statistics
from late.cache.changes import changed
from late.cache.moment import Moment

__all__ = ["Cache", "Moment", "Snapshot", "Statistics", "changed"]
