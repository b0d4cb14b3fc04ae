"""The notices of PostgreSQL by which workers tell each other; `late_wake()` of the migrations sends
those of commits."""

from __future__ import annotations

CHANNEL = "late_wake"
WITHDRAWN = " withdrawn"
"""The end of the payload that tells of a withdrawal, after the schema."""
FLEET = " fleet"
"""The end of the payload that tells of a change of the fleet, after the schema."""

# A full queue of notices fails the commit. One that is half full is left alone, as `late_wake()`
# does: then a change is seen with the next heartbeat.
TELL_FLEET = (
    "case when pg_notification_queue_usage() < 0.5"
    f" then pg_notify('{CHANNEL}', current_schema() || '{FLEET}') end"
)
"""An expression of SQL that tells all workers of this schema, at the commit."""
