"""What the channel pool and its keepalive save when connections break: with and without, in turns.

A gRPC server on loopback answers behind a network that resets connections, or loses everything on
one of them. "Without" is one channel with the options of Google's client; "with" is the
`ChannelPool` of the Spanner store. Eight callers call and wait in turn, without repeats of their
own, so each failure counts.

    python -m bench.channels [--turns 3] [--seconds 15]
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import grpc
from google.protobuf.empty_pb2 import Empty

from bench.steady.loop import fixed_loop_ms
from late.store.spanner.client import CHANNELS
from late.store.spanner.grpc_calls import Stamp
from late.store.spanner.grpc_channels import OPTIONS, ChannelPool

METHOD = "/bench.Echo/Echo"
CALLERS = 8
PAUSE_S = 0.02
DEADLINE_S = 10.0
"""Of one call, so that a connection that nobody finds dead ends calls at last."""
BREAK_AFTER_S = 2.0
RESET_EVERY_S = 0.25
CLIENTS_OWN = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 120_000),
    ("grpc.use_local_subchannel_pool", 1),
]
"""The options that Google's client opens its channel with."""


class Call(NamedTuple):
    began_s: float
    took_s: float
    failed: bool


class Found(NamedTuple):
    """The result of one turn."""

    calls: int
    failed: int
    error_s: float
    """The time in which calls that failed were out, overlaps counted once."""
    found_s: float
    """From the break to the last call that waited for it."""


class Network:
    """Carries connections to `port`, and breaks them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lost: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset_one(self, rng: random.Random) -> None:
        """End one connection with a reset."""
        if not self._pairs:
            return
        pair = self._pairs.pop(rng.randrange(len(self._pairs)))
        for each in pair:
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
                each.close()

    def lose_one(self) -> None:
        """Lose everything on one connection from now on, and keep it open."""
        self._lost.update(self._pairs[0])

    def close(self) -> None:
        """End all connections."""
        self._listener.close()
        while self._pairs:
            self.reset_one(random.Random(0))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._pairs.append((client, server))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if source not in self._lost:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


class _Echo(grpc.GenericRpcHandler):
    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


def _echo(channel: grpc.Channel) -> Callable[[], object]:
    call: Any = channel.unary_unary(METHOD, Empty.SerializeToString, Empty.FromString)
    return lambda: call(Empty(), timeout=DEADLINE_S)


@contextmanager
def _server() -> Iterator[int]:
    made = grpc.server(ThreadPoolExecutor(2 * CALLERS), handlers=[_Echo()])
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    yield port
    made.stop(None).wait()


def _without(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", CLIENTS_OWN)


def _with(port: int) -> grpc.Channel:
    made = [grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS) for _ in range(CHANNELS)]
    return ChannelPool(made, stamp=Stamp(0, "bench"))


def _resets(network: Network, ends_s: float) -> None:
    rng = random.Random(1)
    while time.monotonic() + RESET_EVERY_S < ends_s:
        time.sleep(RESET_EVERY_S)
        network.reset_one(rng)


def _loss(network: Network, _: float) -> None:
    time.sleep(BREAK_AFTER_S)
    network.lose_one()


def measure(
    make: Callable[[int], grpc.Channel], fault: Callable[[Network, float], None], seconds: float
) -> Found:
    """Call for some seconds while the network breaks."""
    with _server() as port:
        network = Network(port)
        channel = make(network.port)
        echo = _echo(channel)
        calls: list[Call] = []
        began_s = time.monotonic()
        ends_s = began_s + seconds

        def run(_: int) -> None:
            while (now := time.monotonic()) < ends_s:
                failed = False
                try:
                    echo()
                except grpc.RpcError:
                    failed = True
                calls.append(Call(now, time.monotonic() - now, failed))
                time.sleep(PAUSE_S)

        with ThreadPoolExecutor(CALLERS + 1) as pool:
            echo()
            pool.submit(fault, network, ends_s)
            for done in [pool.submit(run, n) for n in range(CALLERS)]:
                done.result()
        channel.close()
        network.close()
    return summary(calls, began_s + BREAK_AFTER_S)


def summary(calls: Sequence[Call], broke_s: float) -> Found:
    """Add up the calls of one turn."""
    failed = sorted(call for call in calls if call.failed)
    error_s, until = 0.0, 0.0
    for call in failed:
        end = call.began_s + call.took_s
        error_s += max(0.0, end - max(call.began_s, until))
        until = max(until, end)
    waited = [call.began_s + call.took_s for call in calls if call.failed or call.took_s > 1.0]
    return Found(len(calls), len(failed), error_s, max([0.0, *(end - broke_s for end in waited)]))


def main() -> None:
    """Print the table of both faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    asked = parser.parse_args()
    for name, fault in (("resets", _resets), ("loss", _loss)):
        found: dict[str, list[Found]] = {"without": [], "with": []}
        for _ in range(asked.turns):
            for label, make in (("without", _without), ("with", _with)):
                found[label].append(measure(make, fault, asked.seconds))
        for label, turns in found.items():
            share = statistics.median(1000 * each.failed / each.calls for each in turns)
            error_s = statistics.median(each.error_s for each in turns)
            found_s = statistics.median(each.found_s for each in turns)
            print(
                f"{name}, {label}: calls {sum(each.calls for each in turns)}, "
                f"failed of 1,000 {share:.1f}, error time {error_s:.2f} s, "
                f"last one after {found_s:.1f} s, loop_ms {fixed_loop_ms():.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
