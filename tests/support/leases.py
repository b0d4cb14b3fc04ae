"""Leases for tests in which nobody dies.

On a busy machine a worker may lose a lease of a few seconds. Then its tasks run again, and a test
that counts runs fails.
"""

from __future__ import annotations

from typing import Any

LONG_LEASES: dict[str, Any] = {"lease_ttl_s": 60.0, "heartbeat_s": 1.0}
"""Settings of a worker: peers are seen as soon as with short leases."""
