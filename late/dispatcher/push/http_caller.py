"""HTTP push: one signed POST for every attempt, and what its answer means.

The body is what the Standard Webhooks specification recommends, `type`, `timestamp` and `data`,
with `task` beside them; or the task is a CloudEvent. A connection is kept for the next attempt, but
not for long: a server that closes it in the same moment fails an attempt that it has not seen.
"""

from __future__ import annotations

import socket
import ssl
import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from late.dispatcher.push import cloud_event, responses, webhook_signature
from late.dispatcher.push.job import Job
from late.errors import ConfigError
from late.handler.classify import Scrub, Verdict
from late.model.targets import HttpTarget, Tls, resolve
from late.observability import traces

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

IDLE_S = 4.0
"""Below the five seconds after which servers, Node's among them, close an idle connection."""
_encode = msgspec.json.Encoder().encode


class HttpCaller:
    """The connections to one URL.

    Of the HTTP clients in wide use aiohttp costs least: httpx looks through all its connections
    for every request, which with 64 calls at a time is some twenty times the work of a call.
    """

    def __init__(self, target: HttpTarget, *, scrub: Scrub | None = None) -> None:
        self.target = target
        self._where = f"target {target.name}"
        self._scrub = scrub
        self._is_event = target.format == "cloudevents"
        self._session: aiohttp.ClientSession | None = None
        self._url: URL
        self._keys: list[bytes] = []
        self._headers: dict[str, str] = {}

    async def start(self) -> None:
        try:
            import aiohttp
            import yarl
        except ImportError:
            raise ConfigError(
                f"{self._where}: aiohttp is not installed: pip install 'late-queue[http]'"
            ) from None
        target, where = self.target, self._where
        self._keys = [
            webhook_signature.key(resolve(text, f"{where}: secret"), f"{where}: secret")
            for text in target.secrets
        ]
        self._headers = {"user-agent": "late", "late-target": target.name} | {
            name: resolve(text, f"{where}: header {name}") for name, text in target.headers.items()
        }
        self._url = yarl.URL(target.url, encoded=True)  # as the operator wrote it
        connector = aiohttp.TCPConnector(
            limit=target.concurrency,
            keepalive_timeout=IDLE_S,
            ssl=tls_context(target.tls or Tls()),
            socket_factory=_socket,
        )
        # No cookies, and no proxy or password from a variable or a file of the environment. The
        # attempt's own time-out ends a call; only to connect has a time of its own.
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=target.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, job: Job) -> Verdict:
        import aiohttp

        assert self._session is not None
        body = self._body_of(job)
        tls = self.target.tls
        try:
            async with self._session.post(
                self._url,
                data=body,
                headers=self._headers_of(job, body),
                allow_redirects=False,
                proxy=self.target.proxy,
                server_hostname=tls.server_name if tls else None,
            ) as response:
                status = response.status
                found = await _read(response)
                after_s = responses.retry_after_s(response.headers.get("retry-after"), time.time())
        except aiohttp.ClientError as error:
            return responses.unavailable(self._where, f"{type(error).__name__}: {error}")
        return responses.http_status(status, found, after_s, self._where, self._scrub)

    async def status_of(self, path: str) -> int:
        """Return the status of a GET of `path` at the target's host, with its headers.

        Raises:
            OSError, TimeoutError: no answer. aiohttp's errors of a connection are `OSError`s.
        """
        import aiohttp
        import yarl

        assert self._session is not None
        tls = self.target.tls
        try:
            async with self._session.get(
                self._url.origin().join(yarl.URL(path, encoded=True)),
                headers=self._headers,
                allow_redirects=False,
                proxy=self.target.proxy,
                server_hostname=tls.server_name if tls else None,
            ) as response:
                return response.status
        except aiohttp.ClientError as error:
            raise OSError(f"{type(error).__name__}: {error}") from None

    def _body_of(self, job: Job) -> bytes:
        if not self._is_event:
            return body_of(job)
        # A job has no ordering key. The attempt has it, and it runs in this context.
        attempt = traces.current.get()
        options = None if attempt is None else attempt.options
        key = None if options is None else options.ordering_key
        return cloud_event.body_of(job, self.target.source, key)

    def _headers_of(self, job: Job, body: bytes) -> Mapping[str, str]:
        # What the producer gave cannot take the place of a header that we send ourselves.
        headers = job.trace | self._headers
        headers |= {
            "content-type": cloud_event.EVENT if self._is_event else "application/json",
            "accept-encoding": "identity",
            "idempotency-key": job.idempotency_key,
            "webhook-id": job.idempotency_key,
        }
        # The receiver compares with its own wall clock; the database's is of no use to it.
        now_s = int(time.time())
        headers["webhook-timestamp"] = str(now_s)
        if self._keys:
            signature = webhook_signature.sign(self._keys, job.idempotency_key, now_s, body)
            headers["webhook-signature"] = signature
        return headers


def body_of(job: Job) -> bytes:
    """`job` as the JSON that a target gets."""
    if job.codec:
        data: Any = msgspec.msgpack.decode(job.payload)
    else:
        data = msgspec.Raw(job.payload)  # As it came: decoding would lose digits.
    task = {
        "id": job.task_id,
        "group": job.group,
        "queue": job.queue,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "deaths": job.deaths,
        "is_replay": job.is_replay,
        "keeps_result": job.keeps_result,
        "due_at": job.due_at,
        "expires_at": job.expires_at,
        "timeout_s": job.timeout_s,
        "headers": job.headers,
    }
    return _encode({"type": job.name, "timestamp": job.enqueued_at, "data": data, "task": task})


def tls_context(tls: Tls) -> ssl.SSLContext:
    """
    Raises:
        ConfigError: a file cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"tls: {tls.ca or tls.cert}: {error.strerror or error}") from None
    return context


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """Read the body, or a byte more than 1 MiB of it; None if it is JSON that cannot be unpacked.

    It is read to its end where that is near, because then the connection serves the next attempt. A
    small body may be huge when it is unpacked, so that is cut as well.
    """
    most, found = responses.ANSWER_BYTES_MAX + 1, bytearray()
    async for part in response.content.iter_any():
        found += part
        if len(found) >= most:
            break
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing in ("identity", "") or not found:
        return bytes(found[:most])
    try:
        if packing in ("gzip", "x-gzip", "deflate"):
            return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(bytes(found), most)
    except zlib.error:
        pass
    return None if "json" in response.headers.get("content-type", "").lower() else b""


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that finds out that the other machine is gone: by probes of TCP while it is idle,
    and by a limit for data that is not acknowledged. After some five seconds either ends it."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 5_000),
    ):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
