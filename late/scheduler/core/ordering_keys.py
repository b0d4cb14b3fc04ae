"""Ordering keys of one shard: strict order per key, one task at a time.

A key is *held* by one task from the moment that it may start until it has ended, through all its
retries: a failing task holds its key. The others wait, in order of (sequence, task id). Waiting
tasks are parked when they wait for long, always **all** of a key that are in memory. So a task that
comes into memory afterwards (`later`) is put in order with the parked ones only once those are
loaded again; until then it does not run. A key with parked tasks costs one small object.

The first in line does not take the key yet while it may have to wait for others:

- tasks of another shard, after a resize of its lane (`late/model/lanes.py`);
- earlier tasks that are not read yet, where the log's order is not that of commits
  (`Options.committed_below`, `docs/design/0003`).

Then its key has no holder, and `opened` tells when it may go.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from late.clock import was_set_back
from late.model.task import HELD_US
from late.scheduler.events_effects import Load
from late.scheduler.task_state import Entry
from late.store.base import WHOLE_WINDOW, HeldKey

LOAD_MAX = 100
LOADS_OUT_MAX = 4
"""Keys whose parked tasks are loaded at the same time: a thousand may be free at once."""
_order = attrgetter("order")
_PARKED_HEAD = ""  # holder of a key whose head is in the timer table and not yet known by id


def _always(name: str, version: int) -> bool:
    return True


class _Key:
    __slots__ = ("below", "holder", "later", "loading", "parked", "parking", "queue", "version")

    def __init__(self, holder: str | None = None, parked: int = 0) -> None:
        self.holder = holder
        self.queue: deque[Entry] = deque()  # next after the holder, in order
        self.later: list[Entry] = []  # not in order with the parked ones yet
        self.parked = parked  # waiting tasks in the timer table, or on their way there
        self.parking = 0  # of those, on their way
        self.loading = False
        self.version = 0  # of the lane; of what holds the key or is first in line, or a lower one
        self.below = 0  # its `committed_below`

    def put(self, entry: Entry) -> None:
        """Add to the queue. Nearly all come in order, and then this is no search."""
        queue, record = self.queue, entry.record
        if queue:
            last = queue[-1].record
            if (last.sequence, last.task_id) > (record.sequence, record.task_id):
                insort(queue, entry, key=_order)
                return
        queue.append(entry)


class OrderingKeys:
    """The holder of each key, and the tasks that wait behind it.

    Args:
        opens: whether a task of a key whose shard was chosen by a version may start.
        read_below: of the window that the checkpoint's cursor is in.
    """

    def __init__(
        self,
        held: Mapping[str, HeldKey],
        opens: Callable[[str, int], bool] = _always,
        read_below: int = WHOLE_WINDOW,
    ) -> None:
        self._opens = opens
        self.read_below = read_below
        """Every record of the tail's window with a lower position is here, or was."""
        self._gated: dict[str, bool] = {}  # first in line must wait; True: for another shard
        self._keys = {
            name: _Key(_PARKED_HEAD if state.head_parked else None, state.waiting)
            for name, state in held.items()
        }
        # In order: a dict, because a set has none that is the same everywhere.
        self.wants = {name: None for name, state in held.items() if not state.head_parked}
        """Keys without a holder whose tasks are in the timer table."""
        self._loads_out = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def gated(self) -> bool:
        """True while a key waits for another shard."""
        return any(self._gated.values())

    @property
    def unread(self) -> bool:
        """True while a key waits for what the tail has not read."""
        return not all(self._gated.values())

    def admit(self, name: str, entry: Entry) -> bool:
        """Let `entry`, which is due, take its key; return False if it has to wait behind it."""
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key()
            key.queue.append(entry)
            return self._goes(name, key) is entry
        if key.holder == entry.record.task_id:
            return True
        if key.parked:
            key.later.append(entry)
            return False
        key.put(entry)
        # Of two that were written at the same time, the one of the older version may come last.
        waits = name in self._gated and not key.loading
        return waits and key.queue[0] is entry and self._goes(name, key) is entry

    def head_loaded(self, name: str, entry: Entry) -> None:
        """Note that `entry` came from the timer table with a due time: it holds its key."""
        key = self._keys.setdefault(name, _Key())
        if key.holder is None or key.holder == _PARKED_HEAD:
            key.holder = entry.record.task_id
            key.version = entry.options.layout

    def is_holder(self, name: str | None, entry: Entry) -> bool:
        """Return whether it is `entry` that its key waits for."""
        key = None if name is None else self._keys.get(name)
        return key is not None and key.holder == entry.record.task_id

    def leave(self, name: str, entry: Entry) -> None:
        """Take `entry` out of the queue of its key: it will come again, at another time."""
        key = self._keys.get(name)
        if key is not None:
            key.queue = deque(other for other in key.queue if other is not entry)
            key.later = [other for other in key.later if other is not entry]

    def release(self, name: str, entry: Entry) -> Entry | None:
        """Note that `entry` has ended; return the next of its key if it is in memory."""
        key = self._keys.get(name)
        if key is None or key.holder != entry.record.task_id:
            return None
        key.holder = None
        return self._advance(name, key)

    def _goes(self, name: str, key: _Key) -> Entry | None:
        """Give the key to the first of its queue, if its gate is open."""
        entry = key.queue[0]
        key.version, key.below = entry.options.layout, entry.options.committed_below
        if not self._may_go(name, key):
            return None
        self._gated.pop(name, None)
        key.queue.popleft()
        key.holder = entry.record.task_id
        return entry

    def _may_go(self, name: str, key: _Key) -> bool:
        """Return whether the first in line waits for nothing but its key."""
        if key.below > self.read_below:
            self._gated[name] = False
            return False
        if not self._opens(name, key.version):
            self._gated[name] = True
            return False
        return True

    def _advance(self, name: str, key: _Key) -> Entry | None:
        while key.queue:
            if key.queue[0].state == "held":  # else it expired while it waited
                return self._goes(name, key)
            key.queue.popleft()
        self._gated.pop(name, None)
        if key.parked:
            self.wants[name] = None
        else:
            del self._keys[name]
        return None

    def opened(self) -> list[Entry]:
        """Return the tasks that take their keys now: what they waited for has come, or has gone."""
        found = []
        for name in list(self._gated):
            key = self._keys.get(name)
            if key is None:
                del self._gated[name]
            elif not key.loading and self._may_go(name, key):
                entry = self._advance(name, key)
                found += [] if entry is None else [entry]
        return found

    def left(self, version: int) -> list[str]:
        """Return the keys that have tasks by this version of the lane, or a lower one."""
        return [name for name, key in self._keys.items() if key.version <= version]

    def park_waiting(
        self, since_us: int, now_us: int, is_ready: Callable[[str], bool]
    ) -> list[Entry]:
        """Take tasks that wait since `since_us` out of memory, with all others of their keys.

        Not where the holder `is_ready`, which is to say only waits for a slot: in a backlog those
        behind it would be written to the timer table and read again for nothing.
        """
        names = [
            name
            for name, key in self._keys.items()
            if not key.loading
            and any(
                e.held_since_us <= since_us or was_set_back(now_us, e.held_since_us)
                for e in (*key.queue, *key.later)
            )
            and not is_ready(key.holder or "")
        ]
        return [entry for name in names for entry in self._park(name)]

    def _park(self, name: str) -> list[Entry]:
        """Take all waiting tasks of a key out of memory. Those that are in the timer table as
        waiting ones already are just forgotten; the others are returned, to be parked."""
        key = self._keys[name]
        assert not key.loading, name  # what comes must meet what waits, or their order is lost
        out = [e for e in (*key.queue, *key.later) if e.state == "held"]
        key.queue, key.later = deque(), []
        key.parked += len(out)
        fresh = [e for e in out if e.timer_key is None or e.timer_key[0] != HELD_US]
        key.parking += len(fresh)
        if key.holder is None:
            self.wants[name] = None
        return out

    def parking_settled(self, name: str) -> None:
        """Note that one waiting task of the key is in the timer table now."""
        key = self._keys.get(name)
        if key is not None:
            key.parking -= 1

    def loads(self) -> list[Load]:
        """Return the loads by which keys without a holder go on; each is asked once."""
        found: list[Load] = []
        for name in list(self.wants):
            if self._loads_out >= LOADS_OUT_MAX:
                break
            if name in self._gated:
                continue  # it would only be parked again
            key = self._keys.get(name)
            if key is None or key.holder is not None or not key.parked or key.loading:
                del self.wants[name]
            elif not key.parking:  # a row on its way is not in the table yet
                del self.wants[name]
                key.loading = True
                self._loads_out += 1
                found.append(Load(until_us=HELD_US, limit=LOAD_MAX, held_key=name))
        return found

    def loaded(self, name: str, entries: Sequence[Entry] | None, *, full: bool) -> Entry | None:
        """Take in the answer to a load (None: it failed and is asked again); `full`: there is more.

        Returns the entry that holds the key now and may start, if one does.
        """
        self._loads_out -= 1
        key = self._keys.get(name)
        if key is None:
            return None
        key.loading = False
        if entries is None:
            self.wants[name] = None
            return None
        # Rows may have been taken away by an operator: what the table says is true.
        key.parked = max(0, key.parked - len(entries)) if full else 0
        edge = entries[-1].order if full and entries else None
        for entry in entries:
            key.put(entry)
        stay = []
        for entry in key.later:
            if edge is None or entry.order < edge:
                key.put(entry)
            else:
                stay.append(entry)
        key.later = stay
        return self._advance(name, key) if key.holder is None else None
