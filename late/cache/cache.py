"""`Cache`: values of the business database, kept in the memory of one process."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import msgspec
from sqlalchemy import Connection, Engine

from late.app.app import App
from late.cache.change_reader import ChangeReader, Round
from late.cache.changes import checked_keys
from late.cache.database import connect, head_of
from late.cache.loads import Loads
from late.cache.moment import Moment
from late.cache.refill import Refill
from late.cache.versions import Answer, Versions
from late.errors import ConfigError, LateError, StoreClosed
from late.model import validation as validate
from late.model.backoff import Backoff
from late.model.task import TaskId
from late.schema.engine import make_engine, parse
from late.store import open_store

V = TypeVar("V")

logger = logging.getLogger("late.cache")

SIZE_BYTES = 64 << 20
MAX_AGE_S = 1.0
MAX_AGE_S_MOST = 86_400.0
POLL_S = 0.05
POLL_S_MOST = 10.0
AGAIN_S = 5.0
"""The longest wait before the log is followed again after an error."""
STOP_S = 10.0


class Snapshot(msgspec.Struct, Generic[V], frozen=True):
    """Values of several keys, all true at one moment."""

    values: Mapping[str, V | None]
    """By key; None: there was no such row."""
    moment: Moment
    """The moment, for `Cache.at`."""
    age_s: float
    """At most so many seconds had passed since the moment when this was answered."""


class Statistics(msgspec.Struct, frozen=True):
    """Counts since the cache was made, and its present size."""

    hits: int
    """Reads that were answered from memory."""
    misses: int
    """Reads that had to load."""
    loads: int
    """Transactions that loaded values; several misses may share one."""
    loaded: int
    """Keys that were loaded."""
    changes: int
    """Records of changes that were read from the log."""
    keys: int
    bytes: int
    """Memory of keys and values, estimated."""
    evictions: int
    """Keys that had to go because the memory was full."""
    restarts: int
    """Times that all was forgotten, because the log could not be followed."""
    age_s: float | None
    """The time since the last look at the log; None: it is not followed at present."""


class Cache(Generic[V]):
    """Keeps what `load` reads, and answers with it as long as the log has no change of it.

    Thread-safe; share one in a process. The first read starts a thread that reads the log.

    Args:
        app: the app whose database it is.
        load: `load(connection, keys)` reads the values of some keys through a SQLAlchemy
            connection, and returns them by key. A key without a row is left out. All that it reads
            belongs to one moment. It runs in any thread.
        size_bytes: the most memory of keys and values, estimated.
        max_age_s: the age that an answer may have, for reads that do not say.
        poll_s: the pause between two looks at the log, 0.005..10.
        refill: load a value that was asked for again as soon as it has changed.

    Raises:
        ConfigError: a setting is wrong, or the app's store removes tasks as they end (CockroachDB).
    """

    def __init__(
        self,
        app: App,
        load: Callable[[Connection, Sequence[str]], Mapping[str, V]],
        *,
        size_bytes: int = SIZE_BYTES,
        max_age_s: float = MAX_AGE_S,
        poll_s: float = POLL_S,
        refill: bool = True,
    ) -> None:
        if not isinstance(app, App):
            raise ConfigError(f"a cache takes the app first, got {validate.shown(app)}")
        if not callable(load):
            raise ConfigError(f"the load of a cache is a function, got {validate.shown(load)}")
        if not isinstance(size_bytes, int) or size_bytes < 1 << 16:
            raise ConfigError(f"size_bytes is at least 65536, got {validate.shown(size_bytes)}")
        if parse(app.url).get_backend_name() == "cockroachdb":
            raise ConfigError("a cache needs a log: this store removes a task as it ends")
        self._url = app.url.partition("?")[0] if app.url.startswith("spanner") else app.url
        self._max_age_s = _seconds(max_age_s, "max_age_s", 0.0, MAX_AGE_S_MOST)
        self._poll_s = _seconds(poll_s, "poll_s", 0.005, POLL_S_MOST)
        self._guard = threading.Lock()
        self._starting = threading.Lock()
        self._versions = Versions(size_bytes)
        self._loads = Loads(load, self._versions, self._guard)
        self._refill = Refill(self._loads) if refill else None
        self._thread: threading.Thread | None = None
        self._engine: Engine | None = None
        self._closed = threading.Event()
        self._hits = self._misses = self._changes = self._restarts = 0

    # --- reads -----------------------------------------------------------------------------------

    def get(
        self, key: str, *, max_age_s: float | None = None, after: TaskId | None = None
    ) -> V | None:
        """Return the value of `key`, or None if it has no row. See `snapshot`."""
        value: V | None = self._read((key,), max_age_s, after).values[key]
        return value

    async def aget(
        self, key: str, *, max_age_s: float | None = None, after: TaskId | None = None
    ) -> V | None:
        """`get` for coroutines: a load runs in a thread."""
        value: V | None = (await self._read_async((key,), max_age_s, after)).values[key]
        return value

    def snapshot(
        self, keys: Iterable[str], *, max_age_s: float | None = None, after: TaskId | None = None
    ) -> Snapshot[V]:
        """Return the values of `keys` as they were at one moment. Do not change the values.

        If the cache does not know them all at one moment, it loads them all.

        Args:
            max_age_s: the moment is at most so many seconds before this call; 0 always loads.
            after: the id that `changed` returned, after its commit: the moment has that change.

        Raises:
            InvalidName: a key is not a text of 1 to 512 characters.
            ConfigError: the log does not keep what is settled: `late retention 10m`.
            StoreError: a load was needed, and the database is away.
            StoreClosed: the cache is closed.
            Exception: what `load` raises.
        """
        asked = checked_keys(keys)
        return _shown(asked, self._read(asked, max_age_s, after))

    async def asnapshot(
        self, keys: Iterable[str], *, max_age_s: float | None = None, after: TaskId | None = None
    ) -> Snapshot[V]:
        """`snapshot` for coroutines: a load runs in a thread."""
        asked = checked_keys(keys)
        return _shown(asked, await self._read_async(asked, max_age_s, after))

    def at(self, keys: Iterable[str], moment: Moment) -> dict[str, V | None]:
        """Return those values of `keys` that are known to have been true at `moment`, which is that
        of an earlier snapshot. It never loads."""
        with self._guard:
            return self._versions.at(checked_keys(keys), moment)

    def _read(self, keys: tuple[str, ...], max_age_s: float | None, after: TaskId | None) -> Answer:
        wanted = () if after is None else (after,)
        known = self._known(keys, max_age_s, wanted)
        return known if known is not None else self._load(keys, wanted)

    async def _read_async(
        self, keys: tuple[str, ...], max_age_s: float | None, after: TaskId | None
    ) -> Answer:
        wanted = () if after is None else (after,)
        known = self._known(keys, max_age_s, wanted)
        if known is not None:
            return known
        # A caller that is cancelled leaves; the load goes on for those that wait for it.
        return await asyncio.to_thread(self._load, keys, wanted)

    def _known(
        self, keys: tuple[str, ...], max_age_s: float | None, after: tuple[TaskId, ...]
    ) -> Answer | None:
        age_s = self._max_age_s
        if max_age_s is not None:
            age_s = _seconds(max_age_s, "max_age_s", 0.0, MAX_AGE_S_MOST)
        with self._guard:
            answer = self._versions.answer(keys, oldest_s=time.monotonic() - age_s, after=after)
            if answer is not None:
                self._hits += 1
        return answer

    def _load(self, keys: tuple[str, ...], after: tuple[TaskId, ...]) -> Answer:
        checked_keys(keys)
        engine = self._started()
        with self._guard:
            self._misses += 1
        return self._loads.get(engine, keys, after)

    # --- the process -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start to read the log now, and not with the first read that has to load.

        Raises:
            ConfigError: the log does not keep what is settled: `late retention 10m`.
            StoreError: the database is away, or has another schema.
        """
        self._started()

    def close(self) -> None:
        """Stop reading the log, and forget all values. Later reads are refused."""
        self._closed.set()
        thread, engine = self._thread, self._engine
        if thread is not None:
            thread.join(STOP_S)
        if self._refill is not None:
            self._refill.close(STOP_S)
        if engine is not None:
            engine.dispose()
        with self._guard:
            self._versions.follow(None, 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> Statistics:
        """Return counts and the present size."""
        with self._guard:
            versions, loads = self._versions, self._loads
            return Statistics(
                hits=self._hits,
                misses=self._misses,
                loads=loads.loads,
                loaded=loads.loaded,
                changes=self._changes,
                keys=len(versions),
                bytes=versions.bytes,
                evictions=versions.evictions,
                restarts=self._restarts,
                age_s=None if versions.frontier is None else time.monotonic() - versions.frontier_s,
            )

    def _started(self) -> Engine:
        """Return the engine; the thread reads the log from then on."""
        with self._starting:
            if self._closed.is_set():
                raise StoreClosed("the cache is closed")
            # After a fork the thread is gone, and the connections belong to the parent.
            if self._engine is None or self._thread is None or not self._thread.is_alive():
                engine = make_engine(self._url)
                try:
                    with connect(engine) as connection:
                        head_of(connection)
                except BaseException:
                    engine.dispose()
                    raise
                self._engine = engine
                self._thread = threading.Thread(
                    target=self._run, args=(engine,), name="late-cache", daemon=True
                )
                self._thread.start()
            return self._engine

    def _run(self, engine: Engine) -> None:
        asyncio.run(self._follow(engine))

    async def _follow(self, engine: Engine) -> None:
        """Follow the log until the cache is closed; after an error from a new beginning."""
        backoff = Backoff(random.Random(), cap_s=AGAIN_S)
        while self._open:
            try:
                await self._advance(engine, backoff)
            except Exception as error:
                if self._open:
                    trace = None if isinstance(error, LateError) else error
                    if not backoff.failures:
                        logger.warning("the log cannot be read: %s", error, exc_info=trace)
                    await asyncio.sleep(backoff.next_s())

    @property
    def _open(self) -> bool:
        # The process may end without `close`; then nothing can be read any more.
        return not self._closed.is_set() and threading.main_thread().is_alive()

    async def _advance(self, engine: Engine, backoff: Backoff) -> None:
        """Move the frontier with the log, from now on."""
        store = open_store(self._url)
        try:
            await store.open()
            with connect(engine) as connection:
                reader = ChangeReader(store, connection)
                follows = False
                while self._open:
                    found = await reader.read()
                    if found is not None:
                        self._take(engine, found, first=not follows)
                        follows = True
                        backoff.reset()
                    await asyncio.sleep(self._poll_s)
        finally:
            await store.close()

    def _take(self, engine: Engine, found: Round, *, first: bool) -> None:
        """Take in what the log says; what it has ended and was asked for is loaded again."""
        with self._guard:
            if first:
                self._restarts += self._versions.frontier is not None
                self._versions.follow(found.moment, found.moment_s)
                return
            self._changes += len(found.changes)
            ended = self._versions.advance(found.moment, found.moment_s, found.changes)
        if self._refill is not None:
            self._refill.ask(engine, ended)


def _shown(keys: tuple[str, ...], answer: Answer) -> Snapshot[Any]:
    """Return the part of an answer that was asked for."""
    values = {key: answer.values[key] for key in keys}
    return Snapshot(values, answer.moment, time.monotonic() - answer.moment_s)


def _seconds(value: Any, what: str, least: float, most: float) -> float:
    if not isinstance(value, (int, float)) or not least <= value <= most:
        bounds = f"{least:g} to {most:g}"
        raise ConfigError(f"{what} is a number of seconds, {bounds}, got {validate.shown(value)}")
    return value
