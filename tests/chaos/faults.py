"""Carries faults out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from tests.chaos.fleet import Fleet, Place
from tests.chaos.plan import Fault, What
from tests.chaos.target import Target


class Breaking:
    """What one fault after the other is done to. `until` waits for a condition."""

    def __init__(
        self, target: Target, fleet: Fleet, until: Callable[[Callable[[], bool]], None]
    ) -> None:
        self._target = target
        self._fleet = fleet
        self._until = until

    def begin(self, fault: Fault) -> threading.Thread | None:
        """Do it. What lasts is a thread to start, and over when that has ended."""
        fleet, ttl_s = self._fleet, self._target.ttl_s
        match fault.what:
            case "kill_producer":
                fleet.kill_producer(fault.target)
            case "kill_server":
                fleet.record("kill_server")
                self._target.server.kill()
                self._target.server.start()
            case "kill_worker":
                place = self._place(fault)
                fleet.kill(place)
                fleet.start(place)
            case "stop_worker":
                # One at a time: somebody is there to take the shards meanwhile.
                fleet.pause(self._place(fault), ttl_s)
            case "stop_at_settle" | "die_at_settle":
                hook = fault.what.partition("_")[0]
                # One of them has something to settle.
                any(fleet.at_settle(place, hook, ttl_s) for place in self._places(fault))
            case "abort" if self._target.abort is not None:
                fleet.record("abort")
                self._target.abort()
            case "blackhole_all":
                return threading.Thread(target=self._cut_off, args=(fault, fleet.places))
            case "blackhole" | "half_open" | "delay":
                return threading.Thread(target=self._cut_off, args=(fault, [self._place(fault)]))
            case _:
                place = self._place(fault)
                fleet.record(fault.what, place.process.pid if place.process else None)
                place.network.begin(fault.what)
        return None

    def _place(self, fault: Fault) -> Place:
        """The one that the fault is for, once somebody works there."""
        return next(self._places(fault))

    def _places(self, fault: Fault) -> Iterator[Place]:
        """All, beginning with that one."""
        places = self._fleet.places
        first = int(fault.target * len(places))
        for place in places[first:] + places[:first]:
            self._until(lambda place=place: self._fleet.up(place))  # type: ignore[misc]
            yield place

    def _cut_off(self, fault: Fault, places: list[Place]) -> None:
        what: What = "blackhole" if fault.what == "blackhole_all" else fault.what
        for place in places:
            self._fleet.record(what, place.process.pid if place.process else None)
            place.network.begin(what)
        time.sleep(fault.for_s * self._target.ttl_s)
        for place in places:
            place.network.end(what)
