"""The control plane: the views and commands of operators, written once for all stores.

`Control` in `control.py` is the whole interface; the other files are its parts, one per subject.
The code is SQLAlchemy Core over `late.schema.tables`. The hot path is apart from it and uses each
store's native driver. A shard's owner holds tasks in memory, and it alone decides about them. A
command for such a task is therefore a row (in the timers or in the log) that the owner reads.
"""

from __future__ import annotations

from late.control.control import Control
from late.control.dead_letters.filter import Filter
from late.control.status.owners import Refused

__all__ = ["Control", "Filter", "Refused"]
