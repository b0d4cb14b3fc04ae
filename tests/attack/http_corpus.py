"""Bytes that are no HTTP, or hardly: each is answered with 4xx, or as what it is, or cut off.

Smuggling would show as an answer to a second request, which the corpus hides behind a first one:
`GET /smuggled`, whose 404 must not come.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

from tests.attack.table import Row
from tests.attack.target import Target

HIDDEN = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
WAIT_S = 12.0
"""A head or a body that does not come whole is ended after 10 s."""


def _head(*lines: bytes, first: bytes = b"POST /v1/ack HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: localhost", *lines, b"", b""])


def corpus() -> Iterator[tuple[str, bytes]]:
    """Give each request with its name."""
    chunked = _head(b"Transfer-Encoding: chunked", b"Content-Type: application/json")
    sizes = (
        b"xyz", b"-1", b"+1", b"0x5", b"5 ", b" 5", b"5;" + b"a" * 40_000, b"ffffffffffffffff",
        b"fffffffffffffffff", b"8000000000000000", b"", b"\0", b"5\n", b"1_0", b"\xb2", b"g",
        b"00000000000000000000000000000000005", b"5;ext=\"\0\"", b"5\rX",
    )  # fmt: skip
    for size in sizes:
        yield f"chunk size {size[:20]!r}", chunked + size + b"\r\nhello\r\n0\r\n\r\n"
    for tail in (b"5\r\nhelloXX0\r\n\r\n", b"5\r\nhell\r\n0\r\n\r\n", b"5\nhello\n0\n\n",
                 b"0\r\nA\0: b\r\n\r\n", b"0\r\n: b\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n",
                 b"0\r\n" + b"a: b\r\n" * 9_000 + b"\r\n"):  # fmt: skip
        yield f"chunks {tail[:16]!r}", chunked + tail
    lengths = (
        b"-1", b"+1", b"1 1", b"0x10", b"1,1", b"1, 2", b"99999999999999999999999", b"1e3", b"",
        b" ", b"\0", b"\xb2", b"18446744073709551616", b"18446744073709551615", b"1.0", b"1\t2",
        b"9223372036854775808",
    )  # fmt: skip
    for length in lengths:
        yield f"content-length {length!r}", _head(b"Content-Length: " + length) + HIDDEN
    codings = (
        b"chunked, chunked", b"identity", b"gzip, chunked", b"chunked, gzip", b"xchunked",
        b"chunked\0", b"\tchunked", b"chunked ,", b"\x0bchunked", b"chunked;q=1", b"CHUNKED x",
        b"", b"\"chunked\"", b"chunked, identity", b"deflate",
    )  # fmt: skip
    for coding in codings:
        both = _head(b"Content-Length: 5", b"Transfer-Encoding: " + coding)
        yield f"length and coding {coding!r}", both + b"0\r\n\r\n" + HIDDEN
        yield f"coding {coding!r}", _head(b"Transfer-Encoding: " + coding) + b"0\r\n\r\n" + HIDDEN
    for lines in (
        (b"Content-Length: 5", b"Content-Length: 0"),
        (b"Content-Length: 0", b"Content-Length: 36"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
        (b"Transfer-Encoding : chunked", b"Content-Length: 5"),
        (b"Transfer-Encoding\r\n : chunked", b"Content-Length: 5"),
        (b"Content-Length: 5\r\n 5",),
        (b"Content-Length\0: 5",),
        (b"Content_Length: 5", b"Transfer-Encoding: chunked"),
        (b"X: y\nTransfer-Encoding: chunked", b"Content-Length: 5"),
        (b"X: y\rTransfer-Encoding: chunked", b"Content-Length: 5"),
    ):
        yield f"smuggling {b'/'.join(lines)[:50]!r}", _head(*lines) + b"0\r\n\r\n" + HIDDEN
    firsts = (
        b"GET", b"GET /", b"GET / HTTP/9.9", b"GET / HTTP/1.1 x", b"GET  / HTTP/1.1",
        b"get / HTTP/1.1",
        b"GE\0T / HTTP/1.1", b"G\xc3\x89T / HTTP/1.1", b"GET / HTTP/0.9", b"GET / HTTP/2.0",
        b"GET /\0 HTTP/1.1", b"GET /\xff\xfe HTTP/1.1", b"GET /%00 HTTP/1.1", b"GET /%zz HTTP/1.1",
        b"GET /%ff%fe HTTP/1.1", b"GET /v1/queues/%ED%A0%80 HTTP/1.1", b"GET /v1/queues/% HTTP/1.1",
        b"GET /../../etc/passwd HTTP/1.1", b"GET /ui/static/..%2f..%2fetc%2fpasswd HTTP/1.1",
        b"GET //evil.example/ HTTP/1.1", b"GET http://evil.example/ HTTP/1.1", b"GET * HTTP/1.1",
        b"CONNECT a:1 HTTP/1.1", b"TRACE / HTTP/1.1", b"PRI * HTTP/2.0", b"OPTIONS * HTTP/1.1",
        b"GET /ui/\\..\\ HTTP/1.1", b"GET /#a HTTP/1.1", b"GET / HTTP/1.", b"GET / ICE/1.0",
        b"DELETE /v1/queues HTTP/1.1", b"GET /?" + b"a=b&" * 7_000 + b" HTTP/1.1",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1", b"A" * 40_000,
        b"GET /v1/queues?group=%ff HTTP/1.1",
        b"PROPFIND / HTTP/1.1", b"GET /ui/%2e%2e/%2e%2e HTTP/1.1", b"GET ui HTTP/1.1",
    )  # fmt: skip
    for first in firsts:
        yield f"first line {first[:40]!r}", _head(first=first)
    headers = (
        b"A : b", b": b", b"A", b"A\0: b", b"A: b\0c", b"A: \xff\xfe", b"\xff: b", b" A: b",
        b"A: b\r\n c", b"A: " + b"b" * 40_000, b"A" * 40_000 + b": b", b"Host: b", b"Host:",
        b"Host: evil.example", b"Host: [::", b"Host: a:b:c", b"Host: \xff", b"Host: a\0b",
        b"Host: [::1]]", b"Host: http://a/", b"Expect: 100-continue", b"Expect: 999",
        b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==",
        b"Authorization: Bearer \xff", b"Authorization: Bearer " + b"a" * 20_000,
        b"Authorization: Bearer late.all.\xc3\xa9", b"Authorization: " + b" " * 9_000,
        b"Cookie: late_seed=\xff; late_token=\0", b"Cookie: late_token=" + b"a" * 20_000,
        b"Cookie: " + b"a=b; " * 5_000, b"Content-Type: \xff", b"Connection: close, keep-alive",
        b"Content-Encoding: gzip", b"traceparent: \xff", b"Range: bytes=0-99999999999999999999",
        b"If-None-Match: " + b"\"a\"," * 5_000, b"X-Forwarded-For: 127.0.0.1", *(),
    )  # fmt: skip
    for header in headers:
        yield f"header {header[:30]!r}", _head(header, first=b"GET /ui/ HTTP/1.1")
    yield "many headers", _head(*[b"a%d: b" % n for n in range(5_000)], first=b"GET / HTTP/1.1")
    yield "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)
    yield "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    yield "zeros", bytes(65_536)
    yield "newlines", b"\r\n" * 20_000
    yield "bare newlines", b"GET / HTTP/1.1\nHost: localhost\n\n"
    yield "bare returns", b"GET / HTTP/1.1\rHost: localhost\r\r"
    yield "a byte order mark", b"\xef\xbb\xbfGET / HTTP/1.1\r\nHost: a\r\n\r\n"
    yield "a short body", _head(b"Content-Length: 50", b"Content-Type: application/json") + b"{}"


def ask(port: int, sent: bytes) -> tuple[str, bytes]:
    """Send the bytes and close this half; return how it ended, and all that came."""
    came = b""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as one:
        try:
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            while part := one.recv(65_536):
                came += part
            return "closed", came
        except TimeoutError:
            return "hangs", came
        except OSError:
            return "reset", came


def run(target: Target) -> Row:
    row = target.row("malformed HTTP: chunks, lengths, smuggling, heads, NULs, encodings")
    with target.watched(row):
        for name, sent in corpus():
            ended, came = ask(target.http, sent)
            found = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", came)]
            outcome = str(found[0]) if found else ended
            row.add(outcome, wrong=_wrong(name, sent, ended, came, found))
    return row


def _wrong(name: str, sent: bytes, ended: str, came: bytes, found: list[int]) -> str | None:
    if ended == "hangs":
        return f"{name}: no end within {WAIT_S:g} s"
    if any(status >= 500 for status in found):
        return f"{name}: {found}"
    if HIDDEN in sent and len(found) > 1:
        return f"{name}: {found}, so the hidden request was answered"
    if b"Traceback" in came or b"root:" in came:
        return f"{name}: it tells of the server's inside"
    return None
