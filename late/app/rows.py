"""Make the rows of calls, with their shards, ids, headers and sealed payloads."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from late.app.task import Call
from late.errors import PayloadTooLarge
from late.model.ids import new_id, new_ids
from late.model.lanes import DEFAULT_LANE, Lane
from late.model.task import SHARDS_MAX, Fence, NewTask, Options, TaskId
from late.observability import traces
from late.payload import codec as codecs
from late.payload import terms
from late.payload import values as payloads
from late.payload.subject_keys import SubjectKeyNeeded

NO_KEYS: Mapping[str, bytes] = {}
log = logging.getLogger("late.app")


class LaneNeeded(Exception):
    """The lane of a call is not known here: read it, `adopt` it, and try again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the lane {name} was not read")
        self.name = name


class RowFactory:
    """Makes rows for the lanes that are known here. Thread-safe.

    Args:
        shards: the number of shards of the lane `default` until a resize of it is known.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self.lane = Lane(shards=shards)
        """The lane of tasks that name none."""
        self._named: dict[str, Lane] = {}
        # Shards take turns from a random start. `next` on a count is atomic, needs no lock and
        # spreads a batch evenly. Forked processes continue from the same number, which is harmless.
        self._turns = itertools.count(random.randrange(SHARDS_MAX))
        self._warned: set[str] = set()

    def adopt(self, lane: Lane) -> None:
        """Place tasks by `lane` from now on, unless a later version is known."""
        if lane.name == DEFAULT_LANE:
            if lane.version > self.lane.version:
                self.lane = lane
            return
        known = self._named.get(lane.name)
        # Without a resize it may have been made wider, for producers that keep no order of keys.
        if known is None or (lane.version, lane.shards) > (known.version, known.shards):
            self._named[lane.name] = lane

    def unknown_lanes(self, calls: Sequence[Call]) -> set[str]:
        """Return the lanes that `calls` name and that are not known."""
        return {call.settings.lane for call in calls if call.settings.lane} - self._named.keys()

    def placed(
        self, calls: Sequence[Call], lane: Lane, keys: Mapping[str, bytes] = NO_KEYS
    ) -> list[NewTask]:
        """Return the rows of `calls` for a lane as the database has it now.

        The lane is adopted unless a later version is known, which is from another database or from
        before a restore. Calls of other lanes go by what is known of those.
        """
        self.adopt(lane)
        if lane.name == DEFAULT_LANE and not lane.version:
            # Before its first resize it has as many shards as the app has set.
            lane = Lane(shards=self._shards)
        return self.many(calls, lane, keys)

    def one(self, call: Call, lane: Lane | None = None) -> NewTask:
        """Return the row of one call, with a new id, for `lane` or else for the known lane.

        Raises:
            PayloadTooLarge: the sealed payload is above 1 MiB.
            SubjectKeyNeeded: the call has a subject, so the rows are made by `many`, with its key.
            LaneNeeded: the call names a lane that is not known.
        """
        if lane is None:
            lane = self.lane if call.settings.lane is None else self._known(call.settings.lane)
        key = call.settings.place_key
        if key is None:
            shard_id = lane.first_shard + next(self._turns) % lane.shards
        else:
            shard_id = lane.shard_of(key)
        headers = traces.captured(call.settings.headers_json)
        return self._row(call, shard_id, new_id(shard_id), lane, headers)

    def many(
        self,
        calls: Sequence[Call],
        lane: Lane | None = None,
        keys: Mapping[str, bytes] = NO_KEYS,
    ) -> list[NewTask]:
        """Return the rows of many calls, as `one` would. `keys` are those of their subjects.

        The ids are made together, and headers are made once for calls that share their settings.

        Args:
            lane: what its lane is for the calls that name it; otherwise what is known here.
        """
        if {call.settings.lane for call in calls} - {None}:
            return self._in_lanes(calls, lane, keys)
        if lane is None or lane.name != DEFAULT_LANE:
            lane = self.lane  # Read once: another thread may adopt another lane meanwhile.
        return self._in_one(calls, lane, keys)

    def _in_lanes(
        self, calls: Sequence[Call], lane: Lane | None, keys: Mapping[str, bytes]
    ) -> list[NewTask]:
        """Return the rows of calls that name lanes, in the order of the calls."""
        parts: dict[str | None, list[int]] = {}
        for number, call in enumerate(calls):
            parts.setdefault(call.settings.lane, []).append(number)
        rows: dict[int, NewTask] = {}
        for name, numbers in parts.items():
            if lane is not None and lane.name == (name or DEFAULT_LANE):
                place = lane
            else:
                place = self.lane if name is None else self._known(name)
            made = self._in_one([calls[number] for number in numbers], place, keys)
            rows.update(zip(numbers, made, strict=True))
        return [rows[number] for number in range(len(calls))]

    def _known(self, name: str) -> Lane:
        lane = self._named.get(name)
        if lane is None:
            raise LaneNeeded(name)
        return lane

    def _in_one(
        self, calls: Sequence[Call], lane: Lane, keys: Mapping[str, bytes]
    ) -> list[NewTask]:
        """Return the rows of calls that all go to `lane`."""
        shards = self._spread(calls, lane)
        rows: list[NewTask] = []
        shared, headers, plain = None, None, False
        for call, shard_id, task_id in zip(calls, shards, new_ids(shards), strict=True):
            if call.settings is not shared:
                shared = call.settings
                headers = traces.captured(shared.headers_json)
                plain = shared.options.ordering_key is None and shared.options.unique_key is None
            if plain:
                payload, options = call.payload, shared.options_json
                if call.codec is not codecs.JSON or len(payload) > payloads.PAYLOAD_BYTES_WARN:
                    payload = self._sealed(call, task_id, shared.options, headers, keys)
                rows.append(
                    NewTask(shard_id, task_id, call.queue, call.name, payload, headers, options)
                )
            else:
                rows.append(self._row(call, shard_id, task_id, lane, headers, keys))
        return rows

    def _spread(self, calls: Sequence[Call], lane: Lane) -> list[int]:
        """Return the shard of each call of a batch.

        Calls without a key take turns as single calls do, but the result is sorted. So neighbours
        in the log's pages have the same shard, which helps the insert and the reader.
        """
        keys = [call.settings.place_key for call in calls]
        turns = itertools.islice(self._turns, keys.count(None))
        free = sorted([lane.first_shard + turn % lane.shards for turn in turns])
        if len(free) == len(keys):
            return free
        next_free = iter(free)
        return [next(next_free) if key is None else lane.shard_of(key) for key in keys]

    def _row(
        self,
        call: Call,
        shard_id: int,
        task_id: TaskId,
        lane: Lane,
        headers: str | None,
        keys: Mapping[str, bytes] = NO_KEYS,
        at_us: int | None = None,
    ) -> NewTask:
        """Return a row. `at_us`: its due time, in place of its delay."""
        checked = call.settings
        options, options_json = checked.options, checked.options_json
        placed, unique_key = options.ordering_key is not None, options.unique_key
        changes: dict[str, int] = {}
        if placed and lane.version:
            changes["layout"] = lane.version
        if at_us is not None:
            changes |= {"at_us": at_us, "delay_us": 0}
        if changes:
            options = msgspec.structs.replace(options, **changes)
            options_json = msgspec.json.encode(options).decode()
        row = NewTask(
            shard_id,
            task_id,
            call.queue,
            call.name,
            self._sealed(call, task_id, options, headers, keys),
            headers,
            options_json,
            unique_key,
            None if unique_key is None else _digest(call, keys),
            checked.unique_for_us,
            checked.on_conflict,
            Fence(lane.name, lane.version) if placed else None,
        )
        if checked.max_wait_us is None or at_us is not None:
            return row
        at = partial(self._row, call, shard_id, task_id, lane, headers, keys)
        return msgspec.structs.replace(
            row, unique_for_us=options.delay_us, max_wait_us=checked.max_wait_us, at=at
        )

    def _sealed(
        self,
        call: Call,
        task_id: TaskId,
        options: Options,
        headers: str | None,
        keys: Mapping[str, bytes],
    ) -> bytes:
        payload = call.payload
        if call.codec is not codecs.JSON:
            subject = codecs.Subject(task_id, call.name, call.queue)
            if options.subject is not None:
                owner = (options.subject, _key_of(call, keys))
                subject = codecs.Sealing.of(subject, terms.of_task(options, headers), owner)
            elif codecs.binds(call.codec):
                subject = codecs.Sealing.of(subject, terms.of_task(options, headers))
            payload = call.codec.seal(payload, subject)
        if len(payload) > payloads.PAYLOAD_BYTES_WARN:
            self._check_size(call.name, len(payload))
        return payload

    def _check_size(self, name: str, size: int) -> None:
        if size > payloads.PAYLOAD_BYTES_MAX:
            limit = payloads.PAYLOAD_BYTES_MAX
            raise PayloadTooLarge(f"{name}: payload of {size} bytes, the limit is {limit}")
        if name not in self._warned:
            self._warned.add(name)
            # This is a log line and not `warnings.warn`, which with warnings as errors would raise
            # an exception in the caller's transaction.
            log.warning(
                "task %s has a payload of %d bytes: store large data elsewhere and send its key",
                name,
                size,
            )


def _digest(call: Call, keys: Mapping[str, bytes]) -> str:
    # The key of the subject, if there is one: after its drop no short argument can be guessed.
    key: bytes = getattr(call.codec, "digest_key", b"")
    if call.settings.options.subject is not None:
        key = _key_of(call, keys)
    return payloads.digest(call.name, call.values, key)


def _key_of(call: Call, keys: Mapping[str, bytes]) -> bytes:
    subject, mine = call.settings.options.subject, codecs.owners(call.codec)
    assert subject is not None
    assert mine is not None, "the options were checked for another codec"
    if subject not in keys:
        raise SubjectKeyNeeded(mine, subject)
    return keys[subject]
