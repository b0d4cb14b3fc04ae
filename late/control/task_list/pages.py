"""One page of tasks in one state.

Nothing is counted. A page looks at a bounded number of rows along a key of each shard, goes as far
as all of them have reached, and says where the next one begins. So a filter that leaves much out
has short pages, or empty ones, and each page says how many rows it looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec
from sqlalchemy import Connection, Engine

from late.control.dead_letters import page as dead_page
from late.control.dead_letters.filter import Filter
from late.control.sql.knob_rows import of_queues
from late.control.sql.last_settlement import journals
from late.control.sql.positions import registered
from late.control.sql.rows import now_us
from late.control.sql.shards import named
from late.control.status.pauses import paused
from late.control.task_list import rows
from late.control.task_list.model import STATES, Key, ListedTask, State, TaskFilter, TaskPage
from late.control.views import DeadView
from late.errors import ConfigError
from late.model.task import Reads
from late.observability.traces import trace_id
from late.schema.engine import reading

LOOKED = 4_000
"""Rows that a page looks at, all shards together."""
LOOKED_MIN = 20
"""Rows of one shard that are looked at, however many shards there are."""
LIMIT = 100


def read_page(
    engine: Engine,
    state: State,
    which: TaskFilter | None = None,
    *,
    after: Key | None = None,
    limit: int = LIMIT,
) -> TaskPage:
    """Read up to `limit` tasks in one state behind `after`, in the order of their keys: by their
    place in the log, the next to come due, the longest running; of `dead` and `done` the latest
    come first.

    Raises:
        ConfigError: there is no such state or group, the limit is below 1, or the filter asks for
            what this state keeps nothing of, or for a tenant where no queue has any.
    """
    which = which or TaskFilter()
    if state not in STATES:
        raise ConfigError(f"no state {state!r:.40}: {', '.join(STATES)}")
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")
    which.check(state)
    with reading(engine) as connection:
        reads = registered(connection).get(which.group)
        if reads is None:
            raise ConfigError(f"no consumer group {which.group!r:.140}")
        now = now_us(connection)
        fair_keys = _fair_keys(connection, which) if which.tenant is not None else {}
        if state == "running":
            return _running(connection, which, after, now, limit)
        if state == "done":
            return _done(connection, which, after, now, limit)
        if state != "dead":
            page = _waiting(connection, state, which, reads, fair_keys, after, now, limit)
            return page if state == "parked" else _with_pauses(connection, page, which.group)
    return _dead(engine, which, fair_keys, after, now, limit)


def _fair_keys(connection: Connection, which: TaskFilter) -> dict[str, str]:
    """The header that names the tenant, by queue.

    Raises:
        ConfigError: no queue that is asked for has one, so that nothing could match.
    """
    known = of_queues(connection).items()
    found = {name: each.fair_key for name, each in known if each.fair_key is not None}
    if which.queue not in found if which.queue else not found:
        subject = f"queue {which.queue[:128]}" if which.queue else "no queue"
        raise ConfigError(
            f"{subject} has {'no' if which.queue else 'a'} fair_key, so its tasks have no tenant: "
            f"late queue set {which.queue or 'QUEUE'} fair_key=HEADER"
        )
    return found


def _waiting(
    connection: Connection, state: State, which: TaskFilter, reads: Reads,
    fair_keys: Mapping[str, str], after: Key | None, now: int, limit: int,
) -> TaskPage:  # fmt: skip
    """Read the rows of all shards, and put them in order."""
    seen = {
        shard_id: each
        for (name, shard_id), each in journals(connection).items()
        if name == which.group
    }
    shards = sorted(named(connection).known | seen.keys())

    def read(some: Sequence[int], share: int) -> list[ListedTask]:
        if state == "logged":
            return list(rows.logged(connection, which, some, seen, after, share))
        if state == "open":
            of_some = {shard_id: seen[shard_id] for shard_id in some if shard_id in seen}
            return list(rows.opened(connection, which, of_some, after, share))
        return list(rows.parked(connection, which, some, after, share))

    if which.plain:
        # Mostly the shards are alike, and twice the share of each is a page.
        share = min(limit + 1, 2 * (limit // max(1, len(shards)) + 4))
    else:
        share = max(LOOKED_MIN, LOOKED // max(1, len(shards)))
    found = sorted(read(shards, share), key=_key)
    reached = _ends(found, share)
    if which.plain:
        # Only a shard whose rows end before the page does may have more of the page. These are few:
        # each has a whole share of the page already.
        last = found[limit].key if len(found) > limit else None
        short = [each for each, end in reached.items() if last is None or end < last]
        if short:
            others = [task for task in found if task.shard_id not in short]
            again = read(short, limit + 1)
            found = sorted((*others, *again), key=_key)
            reached = {each: end for each, end in reached.items() if each not in short}
            reached |= _ends(again, limit + 1)
    return _merged(found, min(reached.values(), default=None),
                   state, which, reads, fair_keys, now, limit)  # fmt: skip


def _with_pauses(connection: Connection, page: TaskPage, group: str) -> TaskPage:
    """Say of each task that has not begun that its queue or its group is paused."""
    found = set(paused(connection)) if page.tasks else set()

    def told(task: ListedTask) -> ListedTask:
        kind = (
            None if task.started
            else "queue" if ("queue", task.queue) in found
            else "group" if ("group", group) in found
            else None
        )  # fmt: skip
        return task if kind is None else msgspec.structs.replace(task, reason=f"{kind} paused")

    return msgspec.structs.replace(page, tasks=tuple(map(told, page.tasks)))


def _ends(found: Iterable[ListedTask], share: int) -> dict[int, Key]:
    """Return the last key of each shard that gave its whole share, so that it may have more."""
    of_shard: dict[int, list[Key]] = {}
    for task in found:
        of_shard.setdefault(task.shard_id, []).append(task.key)
    return {shard_id: max(keys) for shard_id, keys in of_shard.items() if len(keys) >= share}


def _merged(
    found: Sequence[ListedTask], reached: Key | None, state: State, which: TaskFilter,
    reads: Reads, fair_keys: Mapping[str, str], now: int, limit: int,
) -> TaskPage:  # fmt: skip
    """Filter the tasks, as far as each shard has come.

    Args:
        found: in the order of their keys.
        reached: the key up to which the tasks of every shard are known; None: all are.
    """
    tasks = (
        task
        for task in found
        if (reached is None or task.key <= reached)
        and which.takes(task, reads, fair_keys)
        and _age_us(task, now) >= which.older_us
        and (state == "parked" or _within(which, task.created_at_us))
    )
    # One more than the limit tells whether there is a next page.
    return _page(state, islice(tasks, limit + 1), reached, now, limit, len(found))


def _key(task: ListedTask) -> Key:
    return task.key


def _within(which: TaskFilter, at_us: int | None) -> bool:
    """Tell whether a time is one that is asked for."""
    since, until = which.since_us, which.until_us
    return at_us is None or ((since is None or at_us >= since) and (until is None or at_us < until))


def _age_us(task: ListedTask, now: int) -> int:
    """Return the age. One that was made before the clock went back is new, and not left out."""
    return max(0, now - (task.created_at_us or 0))


def _page(
    state: State, tasks: Iterable[ListedTask], reached: Key | None, now: int, limit: int,
    looked: int,
) -> TaskPage:  # fmt: skip
    """Cut the tasks to the limit.

    Args:
        reached: how far the look came, if it ended at its bound.
    """
    found, stopped = list(tasks), reached is not None
    if len(found) > limit:
        found, stopped, reached = found[:limit], False, found[limit - 1].key
    return TaskPage(state, tuple(found), reached, now, looked, stopped)


def _running(
    connection: Connection, which: TaskFilter, after: Key | None, now: int, limit: int
) -> TaskPage:
    found = rows.running(connection, which)
    tasks = [
        task
        for task in found
        if which.matches(task, {})
        and (after is None or task.key > after)
        and _within(which, task.began_at_us)
    ]
    return _page("running", tasks, None, now, limit, len(found))


def _done(
    connection: Connection, which: TaskFilter, after: Key | None, now: int, limit: int
) -> TaskPage:
    tasks, reached = rows.done(connection, which, after, LOOKED)
    asked = [task for task in tasks if which.matches(task, {})]
    return _page("done", asked, reached, now, limit, len(tasks) if reached is None else LOOKED)


def _dead(
    engine: Engine, which: TaskFilter, fair_keys: Mapping[str, str], after: Key | None, now: int,
    limit: int,
) -> TaskPage:  # fmt: skip
    """Dead letters, by their own pages: those end at a time, which the next one begins with."""
    until_us = which.until_us if after is None else after[0]
    chosen = Filter(
        queue=which.queue, name=which.name, reason=which.reason, group=which.group,
        since_us=which.since_us, until_us=until_us,
    )  # fmt: skip
    found = dead_page.read_page(engine, chosen, limit=limit)
    tasks = tuple(
        task
        for task in map(_of_letter, found.letters)
        if which.matches(task, fair_keys) and _age_us(task, now) >= which.older_us
    )
    sifted = any((which.queue, which.name, which.reason))
    looked = dead_page.LOOKED if sifted and found.before_us is not None else len(found.letters)
    after = None if found.before_us is None else (found.before_us, "")
    stopped = after is not None and len(tasks) < limit
    return TaskPage("dead", tasks, after, now, looked, stopped)


def _of_letter(letter: DeadView) -> ListedTask:
    key = (letter.options or {}).get("ordering_key")
    lines = letter.errors[-1].error.strip().splitlines() if letter.errors else []
    return ListedTask(
        at=letter.dead_at_us, task_id=letter.task_id, group=letter.group,
        shard_id=letter.shard_id, queue=letter.queue, name=letter.name,
        created_at_us=letter.created_at_us, attempts=letter.attempts, reason=letter.reason,
        ordering_key=None if key is None else str(key), ended_at_us=letter.dead_at_us,
        trace=trace_id(letter.headers), error=lines[-1] if lines else None,
        headers=letter.headers,
    )  # fmt: skip
