"""KEDA's external scaler: the number of workers that a group needs, for a Kubernetes HPA.

The metric is that number with a target of 1, so that the HPA's own rule (metric / target) leads to
it, within the HPA's limits and stabilization. Fields of a ScaledObject's `metadata`:

    group: default     queue: payments (all)     slots: 16     drainSeconds: 60

`oldestAgeSeconds` adds a second metric, the age of the oldest task, with that value as its target;
the HPA follows the metric that asks for more.

Source: kedacore/keda, pkg/scalers/externalscaler, which defines the interface.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
import msgspec

from late.autoscaler.keda.demand import Signals, workers_wanted
from late.errors import ConfigError, LateError
from late.v1 import externalscaler_pb2 as pb
from late.v1 import externalscaler_pb2_grpc as rpc

METRIC = "late-workers"
AGE_METRIC = "late-oldest-age-s"
KEEP_S = 2.0
KEPT = 1_000
NAME_MAX = 128
STREAM_S = 5.0
STREAMS = 8
THREADS = STREAMS + 4
FIELDS = {"group", "queue", "slots", "drainSeconds", "oldestAgeSeconds"}
KEDA_FIELDS = {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey"}
"""Fields of a trigger that are for KEDA itself; it passes all fields on."""


Key = tuple[str, str | None]
"""Group and queue."""
T = TypeVar("T")


class ScalingTarget(msgspec.Struct, frozen=True):
    """The question of one ScaledObject: a group or queue, and the settings for its workers."""

    group: str = "default"
    queue: str | None = None
    slots: int = 16
    drain_s: float = 60.0
    oldest_age_s: float | None = None
    """Age of the oldest task at which one worker is right; twice the age asks for two."""


def parse_metadata(metadata: Mapping[str, str]) -> ScalingTarget:
    """Parse and check the metadata of a ScaledObject.

    Raises:
        ConfigError: an unknown field or an impossible value; it names the field.
    """
    for name in metadata:
        if name not in FIELDS | KEDA_FIELDS:
            raise ConfigError(f"unknown field {name[:64]!r}; known: {', '.join(sorted(FIELDS))}")

    for name in ("group", "queue"):
        # Checked here because the cache also keeps names that are refused later.
        if len(metadata.get(name, "")) > NAME_MAX:
            raise ConfigError(f"{name}: a name has up to {NAME_MAX} characters")

    def number(name: str, default: float, least: float) -> float:
        text = metadata.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            raise ConfigError(f"{name} = {text!r:.40}: not a number") from None
        if not least <= value <= 1e6:
            raise ConfigError(f"{name} = {text!r:.40}: must be within {least:g}..1000000")
        if name == "slots" and value != int(value):
            raise ConfigError(f"{name} = {text!r:.40}: not a whole number")
        return value

    return ScalingTarget(
        group=metadata.get("group", "default"),
        queue=metadata.get("queue") or None,
        slots=int(number("slots", 16, 1)),
        drain_s=number("drainSeconds", 60, 1),
        oldest_age_s=number("oldestAgeSeconds", 0, 1) if "oldestAgeSeconds" in metadata else None,
    )


class SignalsCache:
    """Signals that are at most `KEEP_S` old, so that the database is asked no more often than that
    and by one thread at a time, however often KEDA asks. The refusal of an unknown group is kept as
    long. Of either kind at most `KEPT` are kept, the newest, because a caller may invent a name for
    each call."""

    def __init__(
        self,
        read: Callable[[str, str | None], Signals],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._monotonic = read, monotonic
        self._lock = threading.Lock()
        self._kept: dict[Key, tuple[float, Signals]] = {}
        self._refused: dict[Key, tuple[float, str]] = {}
        """Refusals are kept apart, so that invented names do not push real groups out."""

    def get(self, group: str, queue: str | None) -> Signals:
        """Return the signals of a group, or of one of its queues.

        Raises:
            ConfigError: an impossible name of a group or queue, or no such group.
            StoreError: the database does not answer; that is not kept.
        """
        with self._lock:
            now, key = self._monotonic(), (group, queue)
            if (kept := self._kept.get(key)) is not None and kept[0] > now - KEEP_S:
                return kept[1]
            if (refused := self._refused.get(key)) is not None and refused[0] > now - KEEP_S:
                raise ConfigError(refused[1])
            try:
                found = self._read(group, queue)
            except ConfigError as error:
                _keep(self._refused, key, (now, str(error)[:300]))
                raise
            _keep(self._kept, key, (now, found))
            return found


def _keep(kept: dict[Key, tuple[float, T]], key: Key, answer: tuple[float, T]) -> None:
    """Add an answer as the newest; remove expired ones, and the oldest if there are too many."""
    kept.pop(key, None)
    for each in [k for k, (at, _) in kept.items() if at <= answer[0] - KEEP_S]:
        del kept[each]
    if len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = answer


class ExternalScaler(rpc.ExternalScalerServicer):
    """KEDA's service. A question without an answer is an error and never a zero, because at an
    error KEDA keeps the present number of workers."""

    def __init__(self, cache: SignalsCache) -> None:
        self._cache = cache
        self._streams = threading.BoundedSemaphore(STREAMS)
        self.stopping = threading.Event()

    def IsActive(self, request: Any, context: Any) -> Any:
        return pb.IsActiveResponse(result=self._wanted(request, context) > 0)

    def StreamIsActive(self, request: Any, context: Any) -> Iterator[Any]:
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {STREAMS} streams")
        try:
            before: bool | None = None
            while context.is_active() and not self.stopping.is_set():
                now = self._wanted(request, context) > 0
                if now != before:
                    yield pb.IsActiveResponse(result=now)
                before = now
                self.stopping.wait(STREAM_S)
        finally:
            self._streams.release()

    def GetMetricSpec(self, request: Any, context: Any) -> Any:
        wish = self._wish(request, context)
        targets = {METRIC: 1.0}
        if wish.oldest_age_s is not None:
            targets[AGE_METRIC] = wish.oldest_age_s
        return pb.GetMetricSpecResponse(
            metricSpecs=[
                pb.MetricSpec(metricName=name, targetSize=round(target), targetSizeFloat=target)
                for name, target in targets.items()
            ]
        )

    def GetMetrics(self, request: Any, context: Any) -> Any:
        ref = request.scaledObjectRef
        wish = self._wish(ref, context)
        if wish.oldest_age_s is not None and request.metricName.endswith(AGE_METRIC):
            seen = self._seen(wish, context)
            # Never more workers than shards: the rest would own none.
            name, value = AGE_METRIC, min(seen.age_s, wish.oldest_age_s * max(1, seen.shards))
        else:
            name, value = METRIC, float(self._wanted(ref, context))
        return pb.GetMetricsResponse(
            metricValues=[
                pb.MetricValue(metricName=name, metricValue=round(value), metricValueFloat=value)
            ]
        )

    def _wish(self, ref: Any, context: Any) -> ScalingTarget:
        try:
            return parse_metadata(ref.scalerMetadata)
        except ConfigError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("unreachable") from error

    def _seen(self, wish: ScalingTarget, context: Any) -> Signals:
        try:
            return self._cache.get(wish.group, wish.queue)
        except ConfigError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error)[:300])
            raise
        except LateError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error)[:300])
            raise

    def _wanted(self, ref: Any, context: Any) -> int:
        wish = self._wish(ref, context)
        return workers_wanted(self._seen(wish, context), slots=wish.slots, drain_s=wish.drain_s)


class KedaServer:
    """The server; it listens once it is made. `port` is the real one.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self, cache: SignalsCache, host: str, port: int, *, credentials: Any = None
    ) -> None:
        self._scaler = ExternalScaler(cache)
        # Each stream holds a thread; `STREAMS` leaves some for questions.
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS),
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 * 1024)],
            maximum_concurrent_rpcs=4 * THREADS,
        )
        rpc.add_ExternalScalerServicer_to_server(self._scaler, self._server)
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(at)
            else:
                self.port = self._server.add_secure_port(at, credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {at}: {str(error)[:200]}") from None
        self._server.start()

    def stop(self) -> None:
        """End the streams at once, and calls under way after a second."""
        self._scaler.stopping.set()
        self._server.stop(1.0).wait()
