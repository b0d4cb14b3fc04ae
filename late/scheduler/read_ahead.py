"""Say how many attempts are handed over beyond the free slots. Pure."""

from __future__ import annotations

READAHEAD_S = 0.005
"""Attempts are handed over for so much work beyond the free slots, judged by the present rate: a
slot that ends finds the next one without a pass in between. Slow tasks get none ahead."""
READAHEAD_MAX = 512
WINDOW_S = 0.05
"""The rate is that of so long a time: slow tasks that end in the same moment are no fast ones."""


class ReadAhead:
    """Measures the rate at which attempts end."""

    def __init__(self) -> None:
        self.ended = 0
        """Since the last measurement; the owner counts them."""
        self.rate = 0.0  # attempts per second, of late
        self.measured_at = 0.0
        self.last = 0
        """The last answer of `attempts`."""

    def attempts(self, now: float) -> int:
        """Return how many go ahead now, by a clock in seconds that only rises."""
        elapsed = now - self.measured_at
        if elapsed > 0.001:
            recent = self.ended / elapsed
            self.rate += (recent - self.rate) * min(1.0, elapsed / WINDOW_S)
            self.ended, self.measured_at = 0, now
        self.last = min(READAHEAD_MAX, int(self.rate * READAHEAD_S))
        return self.last
