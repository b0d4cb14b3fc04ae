"""The table of one port's connections, and the limit of open files."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from late.api.access.connections import Connection, Connections, source_of
from late.api.grpc.strangers import Strangers
from late.api.limits import CONNECTIONS, FILES_RESERVED, connections_of


class Table:
    """A table, and the numbers of the connections that it has closed."""

    def __init__(self, most: int, of_address: int) -> None:
        self.closed: list[int] = []
        self.refused: list[str] = []
        self.connections = Connections(most, lambda address: of_address, self.refused.append)
        self._next = 0

    def add(self, host: str, *, busy: bool = False) -> Connection | None:
        number = self._next
        self._next += 1
        made = self.connections.admit(host, lambda: self.closed.append(number))
        if made is not None:
            made.is_idle = lambda: not busy
        return made


def test_the_one_that_is_idle_for_the_longest_time_makes_room() -> None:
    table = Table(4, 4)
    first, *_ = [table.add("a") for _ in range(4)]
    assert first is not None
    table.connections.touch(first)
    assert table.add("a") is not None
    assert table.closed == [1]
    assert len(table.connections) == 4


def test_a_running_request_is_not_closed() -> None:
    table = Table(3, 3)
    table.add("a", busy=True)
    table.add("a")
    table.add("a", busy=True)
    assert table.add("a", busy=True) is not None
    assert table.closed == [1]
    assert table.add("a") is None
    assert table.closed == [1]


def test_an_address_has_its_share_and_the_fullest_makes_room() -> None:
    table = Table(6, 4)
    for _ in range(10):
        table.add("flood")
    assert (len(table.connections), len(table.closed)) == (4, 6)
    table.add("b")
    table.add("c")
    assert table.add("d") is not None
    assert table.closed[6:] == [6]


def test_another_address_makes_room_where_the_fullest_is_busy() -> None:
    table = Table(3, 2)
    table.add("a", busy=True)
    table.add("a", busy=True)
    table.add("b")
    assert table.add("c") is not None
    assert table.closed == [2]


def test_a_removed_connection_is_forgotten() -> None:
    table = Table(1, 1)
    made = table.add("a")
    assert made is not None
    table.connections.remove(made)
    table.connections.remove(made)
    table.connections.touch(made)
    assert len(table.connections) == 0
    assert table.add("a") is not None
    assert not table.closed


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (source_of(one) == source_of(other)) is same


def test_files_are_left_for_all_else() -> None:
    assert connections_of(65_536) == CONNECTIONS
    assert connections_of(1_024) == 320
    for files in (512, 1_024, 2_048):
        assert 2 * connections_of(files) + FILES_RESERVED <= files
    assert connections_of(64) == 32


def test_strangers_are_ended_and_admitted_connections_are_not() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        strangers = Strangers(8, lambda reason, count: None)
        for _ in range(3):  # the first look only learns which connections there are
            clients, peers = [], []
            for _ in range(12):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                peers.append(stack.enter_context(listener.accept()[0]))
                client.settimeout(0.0)
                clients.append(client)
            for client in clients[:5]:
                host, client_port = client.getsockname()
                strangers.admitted(f"ipv4:{host}:{client_port}")
            strangers.look(port)
            assert [is_open(client) for client in clients[:5]] == [True] * 5
            assert sum(is_open(client) for client in clients[5:]) <= 2
            for each in (*clients, *peers):
                each.close()
        assert strangers.look(port) == 0


def is_open(client: socket.socket) -> bool:
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:10.0.0.1:80", ("10.0.0.1", 80)),
        ("ipv6:%5B2001:db8::1%5D:80", ("2001:db8::1", 80)),
        ("ipv6:[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)),
        ("unix:/run/late", None),
    ],
)
def test_the_other_end_is_read_as_grpc_names_it(
    peer: str, expected: tuple[str, int] | None
) -> None:
    strangers = Strangers(8, lambda reason, count: None)
    strangers.admitted(peer)
    assert strangers._known == ({expected} if expected else set())


@pytest.mark.parametrize(("soft", "hard", "after"), [(256, 8_192, 8_192), (256, 512, 512)])
def test_the_limit_of_files_is_raised_and_a_low_one_is_told(
    soft: int, hard: int, after: int
) -> None:
    program = (
        "import logging, resource; logging.basicConfig();"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        "from late.worker.file_limit import file_limit, raise_file_limit;"
        "raise_file_limit(); print(file_limit())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [str(after)]
    assert done.stderr.count("give it 4096") == (after < 4_096)
