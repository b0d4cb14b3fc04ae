"""A client of HTTP/2 that sends what it is told to, also what no gRPC library would send."""

from __future__ import annotations

import re
import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
WINDOW = 65_535
FRAME_BYTES = 16_384
QUIET_S = 1.0


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def header(name: str, value: str) -> bytes:
    """Encode a header without compression; each text is shorter than 127 bytes."""
    return b"\x00" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))


class Http2:
    """One connection. Everything blocks, but never longer than `quiet_s` without a frame."""

    def __init__(self, port: int, quiet_s: float = QUIET_S) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=quiet_s)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        self._buffer = b""
        self._initial = self._window = WINDOW
        self._windows: dict[int, int] = {}
        self._next = 1
        self.answers: dict[int, bytes] = {}
        """The frames of each stream that hold headers, or its reset, as they came."""
        self.closed = False
        self._over: set[int] = set()

    def call(self, path: str, **more: str) -> int:
        """Begin a call, and return its stream."""
        stream, self._next = self._next, self._next + 2
        told = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        told |= {"content-type": "application/grpc", "te": "trailers", **more}
        block = b"".join(header(name, value) for name, value in told.items())
        self._windows[stream] = self._initial
        parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)]
        for number, part in enumerate(parts, 1):
            kind = HEADERS if number == 1 else CONTINUATION
            self._send(frame(kind, END_HEADERS if number == len(parts) else 0, stream, part))
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> int:
        """Send as much as the server takes before it answers; return how much that was."""
        sent = 0
        while sent < len(data) and not self.closed and stream not in self.answers:
            room = min(self._window, self._windows[stream], FRAME_BYTES, len(data) - sent)
            if room <= 0:
                if not self._read_frame():
                    break
                continue
            self._send(frame(DATA, 0, stream, data[sent : sent + room]))
            self._window -= room
            self._windows[stream] -= room
            sent += room
        if end:
            self._send(frame(DATA, END_STREAM, stream))
        return sent

    def status(self, stream: int) -> int | None:
        """Wait for the status of the connection's first answer; None if the stream ends without."""
        while not (found := re.search(rb"grpc-status[\1\2](\d+)", self.answers.get(stream, b""))):
            if stream in self._over or not self._read_frame():
                return None
        return int(found[1])

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self.closed = True

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionError
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _read_frame(self) -> bool:
        try:
            head = self._take(9)
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            body = self._take(int.from_bytes(head[:3], "big"))
        except TimeoutError:
            return False
        except OSError:
            self.closed = True
            return False
        if kind == WINDOW_UPDATE and stream:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(body, "big")
        elif kind == WINDOW_UPDATE:
            self._window += int.from_bytes(body, "big")
        elif kind == SETTINGS and not flags & ACK:
            for number, value in struct.iter_unpack(">HI", body):
                if number == INITIAL_WINDOW_SIZE:
                    for each in self._windows:
                        self._windows[each] += value - self._initial
                    self._initial = value
            self._send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, 0, body))
        elif kind in (HEADERS, RST_STREAM):
            self.answers[stream] = self.answers.get(stream, b"") + body
            if kind == RST_STREAM or flags & END_STREAM:
                self._over.add(stream)
        return True
