"""The endpoints of one gRPC target: which of them are up, and how their connections are left.

Every endpoint is asked for its health (`grpc.health.v1`) every `probe_s` (at most 5 s), over the
connection that the calls use. One answer tells that the connection lives and that the service
wants work; a service without health checks answers UNIMPLEMENTED, which tells the first.

| the probe | the endpoint | its calls |
|---|---|---|
| SERVING, UNIMPLEMENTED, another refusal | up | |
| NOT_SERVING | gets no new calls | go on |
| UNAVAILABLE (refused, reset) | gets none until a probe passes | gRPC has ended them |
| no answer, nor do new connections come about | gets none | ended: the other side is gone |
| no answer, but a new connection gets one | gets them over that | ended: the old one is half-open |
| no answer over either | gets none | go on: the service is too busy |

Pings of HTTP/2 would be simpler and are not used: a server with gRPC's defaults takes one every
five minutes, and answers more with the end of the connection, and so of everything that it is
just doing. Below, TCP's own time-out for unacknowledged data is set, which needs nobody's consent.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from late import events
from late.config import package_version
from late.dispatcher.push.responses import ANSWER_BYTES_MAX
from late.errors import ConfigError
from late.handler.classify import clean
from late.model.targets import GrpcTarget, Tls, address
from late.v1.handler_pb2 import ExecuteRequest, ExecuteResponse

RESOLVE_EVERY_S = 10.0
DOWN_S = (0.1, 2.0)
"""First and longest pause between two probes of an endpoint that is down."""
UNACKED_MS = 5_000
SERVING = 1
_FOREVER_MS = 2**31 - 2

Address = tuple[str, int]


class Endpoint:
    """One address and the connection to it. The caller counts its `calls`."""

    def __init__(
        self, target: GrpcTarget, name: str, at: Address, service: str, rng: random.Random
    ) -> None:
        self.name = name
        self.at = at
        host, port = at
        self.uri = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self.label = name if address(name)[0] == host else f"{name} ({host})"
        self.calls = 0
        self.up = False
        self.why = "not connected yet"
        self._target = target
        self._service = service
        self._rng = rng
        self._doubted = asyncio.Event()
        self._told: bool | None = None
        self._metadata: list[tuple[str, str]] = []
        self._channel = self._open()
        self._wire()

    def doubt(self) -> None:
        """Send it no more calls until a probe passes, as one found it unavailable."""
        self.up = False
        self._doubted.set()

    async def watch(self, metadata: list[tuple[str, str]], changed: Callable[[], None]) -> None:
        """Probe for ever, and call `changed()` after each probe."""
        self._metadata = metadata
        down_s, longest_s = DOWN_S
        pause_s = down_s
        while True:
            self._doubted.clear()
            up, why = await self._probe()
            if up and self._doubted.is_set():
                continue  # a call has failed meanwhile, and the answer may be of before that
            self.up, self.why = up, why
            self._tell()
            changed()
            if self.up:
                pause_s, wait_s = down_s, self._target.probe_s
            else:
                pause_s, wait_s = min(2 * pause_s, longest_s), pause_s
            try:
                async with asyncio.timeout(wait_s * self._rng.uniform(0.8, 1.2)):
                    await self._doubted.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """End the connection and the calls on it."""
        self.up = False
        await self._channel.close(None)

    async def _probe(self) -> tuple[bool, str]:
        """Tell whether it may get calls, and if not, why."""
        code, status = await self._check(self._channel, self._target.probe_s)
        if code == "DEADLINE_EXCEEDED":
            if self._channel.get_state() is grpc.ChannelConnectivity.READY:
                return await self._suspect()
            return False, "no connection within the time of a probe"
        return _judged(code, status)

    async def _suspect(self) -> tuple[bool, str]:
        """Find out why a connection does not answer: it, the service, or the machine is gone."""
        wait_s = self._target.probe_s
        fresh = self._open()
        old = asyncio.ensure_future(self._check(self._channel, 3 * wait_s))
        try:
            try:
                async with asyncio.timeout(wait_s):
                    await fresh.channel_ready()
            except TimeoutError:
                if old.done():
                    return _judged(*old.result())
                fresh = await self._leave(fresh)
                return False, "it stopped answering, and takes no new connection"
            code, status = await self._check(fresh, wait_s)
            if not old.done() and code != "DEADLINE_EXCEEDED":
                # The old connection was asked first; a busy service would answer there first.
                await asyncio.wait([old], timeout=wait_s / 4)
            if old.done():
                return _judged(*old.result())
            if code == "DEADLINE_EXCEEDED":
                return False, "it takes connections and does not answer: busy"
            fresh = await self._leave(fresh)
            return _judged(code, status)
        finally:
            old.cancel()
            await asyncio.wait([old])
            await fresh.close(None)

    async def _leave(self, fresh: grpc.aio.Channel) -> grpc.aio.Channel:
        """Use `fresh` from now on, and return the old connection."""
        old, self._channel = self._channel, fresh
        self._wire()
        await old.close(None)
        return old

    async def _check(self, channel: grpc.aio.Channel, timeout_s: float) -> tuple[str, int]:
        """Return the name of the status code, and the health if that is OK.

        The two messages of `grpc.health.v1` have one field of number 1 each, a text and an enum:
        the same bytes as these wrappers, so that no further package is needed.
        """
        ask = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=Int32Value.FromString,
        )
        try:
            answer = await ask(
                StringValue(value=self._service), timeout=timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND and self._service:
                self._service = ""  # It checks its health as a whole, not by service.
                return await self._check(channel, timeout_s)
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return "UNAVAILABLE: " + (error.details() or ""), 0
            return error.code().name, 0
        return "OK", answer.value

    def _wire(self) -> None:
        self.execute = self._channel.unary_unary(
            "/late.v1.Handler/Execute",
            request_serializer=ExecuteRequest.SerializeToString,
            response_deserializer=ExecuteResponse.FromString,
        )

    def _open(self) -> grpc.aio.Channel:
        host, port = address(self.name)
        tls = self._target.tls_for(self.name)
        if tls is not None:
            host = tls.server_name or host
        options = channel_options(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        if tls is None:
            return grpc.aio.insecure_channel(self.uri, options=options)
        options.append(("grpc.ssl_target_name_override", host))
        return grpc.aio.secure_channel(self.uri, credentials(tls), options=options)

    def _tell(self) -> None:
        if self.up == self._told:
            return
        self._told, about = self.up, {"target": self._target.name, "endpoint": self.label}
        if self.up:
            events.default.emit(events.TARGET_UP, **about)
        else:
            events.default.emit(events.TARGET_DOWN, **about, error=clean(self.why))


class Endpoints:
    """The endpoints of a target, kept up to date with the addresses of their names."""

    def __init__(
        self,
        target: GrpcTarget,
        service: str,
        metadata: list[tuple[str, str]],
        rng: random.Random,
    ) -> None:
        self._target = target
        self._service = service
        self._metadata = metadata
        self._rng = rng
        self._known: dict[tuple[str, Address], Endpoint] = {}
        self._watches: dict[tuple[str, Address], asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._resolving: asyncio.Task[None] | None = None
        self._unresolved: dict[str, str] = {}
        self._turn = 0

    @property
    def all(self) -> list[Endpoint]:
        """The endpoints that are known, up or not."""
        return list(self._known.values())

    @property
    def all_up(self) -> bool:
        """True if every name has addresses, and every address is up."""
        return not self._unresolved and all(each.up for each in self._known.values())

    async def start(self) -> None:
        """
        Raises:
            ConfigError: a certificate cannot be read.
        """
        for name in self._target.endpoints:
            if (tls := self._target.tls_for(name)) is not None:
                credentials(tls)
        await self._resolve()
        self._resolving = asyncio.create_task(self._keep_resolving(), name="late-resolve")

    async def close(self) -> None:
        tasks = [*self._watches.values(), *([self._resolving] if self._resolving else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(endpoint.close() for endpoint in self._known.values()))
        self._known.clear()
        self._watches.clear()

    async def pick(self, wait_s: float) -> Endpoint | None:
        """Return the endpoint with the fewest calls among those that are up; None if none is within
        `wait_s`."""
        found = self._best()
        if found is not None:
            return found
        try:
            async with asyncio.timeout(wait_s):
                while found is None:
                    self._changed.clear()
                    await self._changed.wait()
                    found = self._best()
        except TimeoutError:
            return None
        return found

    def why(self) -> str:
        """Say why none is up."""
        found = [f"{each.label}: {each.why}" for each in self._known.values() if not each.up]
        found += [f"{name}: {why}" for name, why in self._unresolved.items()]
        return "no endpoint is up: " + "; ".join(found[:3])

    def _best(self) -> Endpoint | None:
        up = [endpoint for endpoint in self._known.values() if endpoint.up]
        if not up:
            return None
        self._turn += 1  # Where several have as few, they take turns.
        first = self._turn % len(up)
        return min(up[first:] + up[:first], key=lambda endpoint: endpoint.calls)

    async def _keep_resolving(self) -> None:
        while True:
            await asyncio.sleep(RESOLVE_EVERY_S * self._rng.uniform(0.8, 1.2))
            await self._resolve()

    async def _resolve(self) -> None:
        """Look the names up. A name that cannot be looked up keeps its last addresses."""
        loop = asyncio.get_running_loop()
        for name in self._target.endpoints:
            host, port = address(name)
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                self._unresolved[name] = clean(str(error))
                continue
            self._unresolved.pop(name, None)
            await self._follow(name, {(str(where[0]), int(where[1])) for *_, where in found})

    async def _follow(self, name: str, addresses: set[Address]) -> None:
        for at in addresses:
            if (name, at) not in self._known:
                endpoint = Endpoint(self._target, name, at, self._service, self._rng)
                self._known[name, at] = endpoint
                self._watches[name, at] = asyncio.create_task(
                    endpoint.watch(self._metadata, self._changed.set), name="late-endpoint"
                )
        gone = [key for key in self._known if key[0] == name and key[1] not in addresses]
        for key in gone:
            endpoint = self._known[key]
            if not self._watches[key].done():
                self._watches[key].cancel()
            endpoint.up = False
            if not endpoint.calls:  # What it is at may end; it is asked again next time.
                del self._known[key], self._watches[key]
                await endpoint.close()


def channel_options(authority: str) -> list[tuple[str, Any]]:
    """Return the settings of every connection to a target."""
    return [
        ("grpc.default_authority", authority),
        ("grpc.primary_user_agent", f"late/{package_version()}"),
        # A connection is nobody else's, so that a new one is a new one.
        ("grpc.use_local_subchannel_pool", 1),
        # Only the configuration says where a target is.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX + 65_536),
        ("grpc.max_send_message_length", 4 * 1024 * 1024),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # No ping ever, but data that the other machine does not acknowledge ends the connection:
        # gRPC sets TCP_USER_TIMEOUT where it has a time for pings at all.
        ("grpc.keepalive_time_ms", _FOREVER_MS),
        ("grpc.keepalive_timeout_ms", UNACKED_MS),
    ]


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    """
    Raises:
        ConfigError: a file cannot be read.
    """
    files: list[bytes | None] = []
    for path in (tls.ca, tls.key, tls.cert):
        try:
            files.append(None if path is None else Path(path).read_bytes())
        except OSError as error:
            raise ConfigError(f"tls: {path} cannot be read: {error.strerror}") from None
    return grpc.ssl_channel_credentials(*files)


def _judged(code: str, status: int) -> tuple[bool, str]:
    if code == "OK":
        return status == SERVING, "it says that it is not serving"
    return not code.startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED")), code
