"""The control plane: what operators see and may change, written once for all stores.

`Control` in `control.py` is the whole interface; the other files are its parts, one per subject.
Everything is SQLAlchemy Core over `late.schema.tables`, apart from the hot path, which uses each
store's native driver. What touches a task that a shard's owner holds in memory goes through the
database in a way that the owner finds by itself (a timer row, a log row): the owner stays the
only one that decides.
"""

from __future__ import annotations

from late.control.control import Control
from late.control.dead_letters.filter import Filter
from late.control.status.owners import Refused

__all__ = ["Control", "Filter", "Refused"]
