"""Loads values again after they have changed, in a thread of its own.

The reader of the log must not wait for a load: while it waits, no key's age is known, so that each
read would have to load too.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import suppress

from sqlalchemy import Engine

from late.cache.loads import Loads


class Refill:
    """At most one thread, which ends when nothing is left to load."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads
        self._guard = threading.Lock()
        self._keys: set[str] = set()
        self._thread: threading.Thread | None = None

    def ask(self, engine: Engine, keys: Collection[str]) -> None:
        """Load `keys` soon, with all that is asked for meanwhile."""
        with self._guard:
            self._keys.update(keys)
            if self._keys and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._run, args=(engine,), name="late-cache-refill", daemon=True
                )
                self._thread.start()

    def close(self, within_s: float) -> None:
        """Load nothing more, and wait for the load that is under way."""
        with self._guard:
            self._keys.clear()
            thread = self._thread
        if thread is not None:
            thread.join(within_s)

    def _run(self, engine: Engine) -> None:
        while True:
            with self._guard:
                keys, self._keys = sorted(self._keys), set()
                if not keys:
                    self._thread = None
                    return
            with suppress(Exception):  # Whoever reads it gets the error.
                self._loads.get(engine, keys)
