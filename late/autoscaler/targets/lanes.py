"""The shards of a lane as a size: their load is the work that arrives and waits.

    load = (attempts a second + backlog / drain) / rate of one shard

in fully used shards; the policy's target is the share of its rate that a shard shall use. Every
consumer group reads every shard: the busiest one counts. Latency is not considered: with too few
workers more shards change nothing, and `late autoscale workers` is for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from late.autoscaler.keda.demand import Signals
from late.autoscaler.metrics.source import Metrics, MetricsError
from late.autoscaler.targets.sizer import CompletedResize, PendingResize, ResizeError
from late.errors import LateError

CPU_MAX = 1000.0
"""`decide` refuses a higher figure; above `overload_cpu` the value makes no difference."""


def load(seen: Sequence[Signals], *, shard_rate: float, drain_s: float) -> float:
    """Return the number of shards that the busiest group would fully use.

    Args:
        shard_rate: attempts a second that one shard can do.
        drain_s: time in which a backlog shall be worked off.
    """
    return max((each.rate + each.backlog / drain_s for each in seen), default=0.0) / shard_rate


class LaneSource:
    """The present metrics of a lane. `width` and `signals` may raise `LateError`."""

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
    """The size of one lane. A resize has ended when the call returns. Draining the old shards takes
    longer: until then the next resize may be refused, and that counts as a failed step."""

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
