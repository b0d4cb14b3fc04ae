"""The notices of PostgreSQL by which workers tell each other; `late_wake()` of the migrations sends
those of commits."""

from __future__ import annotations

CHANNEL = "late_wake"
WITHDRAWN = " withdrawn"
"""The end of the payload that tells of a withdrawal, after the schema."""
FLEET = " fleet"
"""The end of the payload that tells of a change of the fleet, after the schema."""

LOG_SCHEMA = (
    "(select nspname from pg_namespace join pg_class c on relnamespace = pg_namespace.oid"
    " where c.oid = to_regclass('late_task'))"
)
"""An expression of SQL: the schema of the log. `current_schema()` may be one before it in the
search path, with tables of the service alone."""

# A full queue of notices fails the commit. One that is half full is left alone, as `late_wake()`
# does: then a change is seen with the next heartbeat.
TELL_FLEET = (
    "case when pg_notification_queue_usage() < 0.5"
    f" then pg_notify('{CHANNEL}', {LOG_SCHEMA} || '{FLEET}') end"
)
"""An expression of SQL that tells all workers of this schema, at the commit."""
