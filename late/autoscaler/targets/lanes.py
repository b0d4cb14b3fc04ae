"""The shards of a lane as something to size: its load is what they have to read and to work off.

    load = (attempts a second + backlog / drain) / what one shard does

in shards that are fully used, so that the policy's target is the share of that which a shard is to
have. Every consumer group reads every shard: the busiest one counts. Latency is not asked: where
the workers are too few, more shards change nothing, and `late autoscale workers` is for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from late.autoscaler.keda.demand import Signals
from late.autoscaler.metrics.source import Metrics, MetricsError
from late.autoscaler.targets.sizer import CompletedResize, PendingResize, ResizeError
from late.errors import LateError

CPU_MAX = 1000.0
"""A policy takes more for a mistake; from its `overload_cpu` on it is all the same."""


def load(seen: Sequence[Signals], *, shard_rate: float, drain_s: float) -> float:
    """How many shards would be fully used, by the busiest group.

    Args:
        shard_rate: attempts a second that one shard is good for.
        drain_s: in what time a backlog is to be gone.
    """
    return max((each.rate + each.backlog / drain_s for each in seen), default=0.0) / shard_rate


class LaneSource:
    """Metrics of a lane, of this moment. `width` and `signals` may raise `LateError`."""

    def __init__(
        self,
        width: Callable[[], int],
        signals: Callable[[], Sequence[Signals]],
        *,
        shard_rate: float,
        drain_s: float,
    ) -> None:
        self._width, self._signals = width, signals
        self._shard_rate, self._drain_s = shard_rate, drain_s

    def read(self, now_us: int) -> Metrics:
        try:
            shards = self._width()
            used = load(self._signals(), shard_rate=self._shard_rate, drain_s=self._drain_s)
        except LateError as error:
            raise MetricsError(str(error)) from error
        return Metrics(now_us, min(CPU_MAX, 100 * used / shards), shards)

    def past(self, from_us: int, until_us: int) -> Sequence[tuple[int, float]]:
        return ()


class LaneSizer:
    """One lane. A resize is done when it returns; that it drains takes longer, and the next one is
    refused until it is far enough, which is a failed step like others."""

    def __init__(
        self, name: str, width: Callable[[], int], resize: Callable[[int], object]
    ) -> None:
        self._name, self._width, self._resize = name, width, resize

    @property
    def name(self) -> str:
        return f"lane:{self._name}"

    def size(self) -> int:
        try:
            return self._width()
        except LateError as error:
            raise ResizeError("no size", str(error)) from error

    def resize(self, before: int, size: int) -> PendingResize:
        try:
            self._resize(size)
        except LateError as error:
            raise ResizeError("refused", str(error)) from error
        return CompletedResize()
