"""Spanner goes away and comes back: the worker goes on by itself, or says what is wrong and ends.

The emulator keeps everything in memory. So a network that breaks stands for a database that goes
away and comes back as it was, and an emulator that is started anew for one that was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from late.control import Control
from late.errors import StoreUnavailable
from late.model.task import Cursor, ShardId
from late.store import open_store
from late.store.base import WorkerInfo
from late.testing.servers import spanner
from late.testing.servers.spanner import SpannerEmulator, create_database
from tests.integration import spanner_kit as kit
from tests.integration.grpc_proxy import Relay
from tests.integration.kill_kit import Fleet, enqueue, settled, until

TASKS = 400
ME = WorkerInfo("w1", "host:1", ("default",))


@pytest.fixture
def emulator() -> Iterator[SpannerEmulator]:
    """One that may be killed."""
    if spanner.find_emulator() is None:
        pytest.skip("no Spanner emulator: gcloud components install cloud-spanner-emulator")
    with SpannerEmulator() as made, kit.environment(made.host):
        yield made


@pytest.fixture
def url(emulator: SpannerEmulator) -> str:
    return create_database(migrated=True)


@pytest.fixture
def fleet_of(url: str, tmp_path: Path) -> Iterator[Callable[[str], Fleet]]:
    """Makes a fleet whose workers reach the emulator at some host, and do not wait for it."""
    made: list[Fleet] = []

    def make(host: str) -> Fleet:
        settings = {spanner.HOST_VARIABLE: host, "LATE_WAIT_FOR_DATABASE_S": "0"}
        made.append(Fleet(url, tmp_path, settings))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


@pytest.mark.parametrize("break_it", [Relay.refuse, Relay.silence], ids=["refused", "silent"])
def test_a_worker_goes_on_when_the_network_is_back(
    break_it: Callable[[Relay], None],
    emulator: SpannerEmulator,
    url: str,
    fleet_of: Callable[[str], Fleet],
) -> None:
    enqueue(url, range(TASKS // 2))
    with Relay(emulator.host) as network:
        # Given a worker in the middle of its work
        fleet = fleet_of(network.host)
        fleet.start()
        until(lambda: fleet.started() > 0, fleet)
        # When the network breaks for longer than a lease lives, and more tasks come meanwhile
        break_it(network)
        enqueue(url, range(TASKS // 2, TASKS))
        until(lambda: "trust_lost" in fleet.logs(), fleet)
        assert fleet.started() < TASKS
        network.restore()
        # Then the same process does all that is left, and nothing twice: nobody has died
        until(lambda: fleet.started() >= TASKS and settled(url), fleet)
        assert fleet.stop() == [0], fleet.logs()
        assert len(fleet.processes) == 1
        starts = fleet.starts()
        assert set(starts) == set(range(TASKS))
        assert not {n for n, pids in starts.items() if len(pids) > 1}


def empty(url: str) -> None:
    create_database(migrated=False, url=url)


def fresh(url: str) -> None:
    create_database(migrated=True, url=url)
    enqueue(url, range(10, 20))


@pytest.mark.parametrize(
    ("made_again", "said"),
    [
        (None, "run `late migrate URL`"),
        (empty, "the schema of late is missing"),
        # It works and is another one: this worker's leases and places in the journal are not there.
        (fresh, "start the workers anew"),
    ],
    ids=["no database", "no schema", "another database"],
)
def test_a_worker_whose_database_is_lost_says_so_once_and_ends(
    made_again: Callable[[str], None] | None,
    said: str,
    emulator: SpannerEmulator,
    url: str,
    fleet_of: Callable[[str], Fleet],
) -> None:
    with Relay(emulator.host) as network:
        fleet = fleet_of(network.host)
        with lost(network, emulator, url, fleet):
            if made_again is not None:
                made_again(url)
        # A supervisor sees that it failed, and whoever reads its log sees why, in one line.
        assert fleet.processes[0].wait(120) == 1
        lines = (fleet.folder / "worker-0.log").read_text().splitlines()
        assert "Traceback" not in "".join(lines)
        [error] = [line for line in lines if " ERROR " in line]
        assert said in error
        assert len(lines) < 100, "it has tried again and again"
        if made_again is fresh:
            # Whoever comes next does what the first one has not, or not to its end.
            fleet.start()
            until(lambda: settled(url), fleet)
            assert set(fleet.starts()) == set(range(20))


def test_a_worker_that_finds_no_server_says_so(
    emulator: SpannerEmulator, url: str, fleet_of: Callable[[str], Fleet]
) -> None:
    emulator.kill()
    fleet = fleet_of(emulator.host)
    fleet.start()
    assert fleet.processes[0].wait(120) == 1
    [line] = fleet.logs().splitlines()
    assert line.startswith("late: Spanner does not answer: ")
    assert "Connection refused" in line


@contextmanager
def lost(network: Relay, emulator: SpannerEmulator, url: str, fleet: Fleet) -> Iterator[None]:
    """A worker has done ten tasks; then the emulator is started anew, out of its sight."""
    fleet.start()
    enqueue(url, range(10))
    until(lambda: fleet.started() == 10 and settled(url), fleet)
    network.refuse()
    emulator.kill()
    emulator.start()
    yield
    network.restore()


async def test_a_store_makes_new_sessions_where_the_old_ones_are_forgotten(
    emulator: SpannerEmulator, url: str
) -> None:
    # Given a store that has used both of its clients
    store = open_store(url)
    await store.open()
    await store.heartbeat(ME, 60)
    emulator.kill()
    emulator.start()
    create_database(migrated=True, url=url)
    # When its sessions are gone, then each client says so at most once, and goes on
    failures = 0
    while True:
        try:
            membership = await store.heartbeat(ME, 60)
            await store.read({ShardId(0): Cursor("")}, 10)
            break
        except StoreUnavailable:
            failures += 1
            assert failures <= 4
    assert [worker.worker_id for worker in membership.workers] == [ME.worker_id]
    await store.close()


def test_a_producer_makes_new_sessions_where_the_old_ones_are_forgotten(
    emulator: SpannerEmulator, url: str
) -> None:
    enqueue(url, range(1))
    emulator.kill()
    emulator.start()
    create_database(migrated=True, url=url)
    enqueue(url, range(1))
    with Control(url) as control:
        assert [queue.depth.n for queue in control.status.read().queues] == [1]
