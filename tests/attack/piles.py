"""Connections that pile up what a server keeps: requests without a wait, heads of many lines."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from tests.attack.table import Row
from tests.attack.target import Target

CONNECTIONS = 100
ROUNDS = 10
TINY = b"GET / HTTP/1.1\r\n\r\n"
PILES = {
    "requests without a wait for an answer, 100 connections": TINY * 14_000,
    "heads of many short lines, 100 connections": b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 8_000,
}
"""Each fills a read of the server; none is answered before it has been read."""


def run(target: Target) -> list[Row]:
    return [_pile(target, name, sent) for name, sent in PILES.items()]


def _pile(target: Target, name: str, sent: bytes) -> Row:
    """Send again and again on all connections, and read nothing meanwhile."""
    row = target.row(name)
    with target.watched(row):
        many = [socket.create_connection(("127.0.0.1", target.http)) for _ in range(CONNECTIONS)]
        for each in many:
            each.setblocking(False)
        for _ in range(ROUNDS):
            for each in many:
                with suppress(OSError):
                    each.send(sent)
            time.sleep(0.1)
        if target.status(target.http, "/livez") != 200:
            row.wrong.append("the HTTP port does not answer meanwhile")
        for each in many:
            row.add(_end(each))
    row.wrong += [
        f"{count} connections {end}" for end, count in row.outcomes.items() if "not" in end
    ]
    return row


def _end(one: socket.socket) -> str:
    """Read all; return how the connection ended."""
    one.settimeout(15)
    came = b""
    with one:
        try:
            while part := one.recv(65_536):
                came += part
        except TimeoutError:
            return "not ended"
        except OSError:
            return "cut off"
    answers = came.count(b"HTTP/1.1 ")
    return f"ended after {answers} answer{'s' * (answers != 1)}" if answers else "cut off"
