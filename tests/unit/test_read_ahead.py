"""How many attempts are handed over beyond the free slots."""

from __future__ import annotations

from late.scheduler.read_ahead import READAHEAD_MAX, ReadAhead


def ahead_of(ended: list[tuple[float, int]]) -> list[int]:
    """The answers at these times, at each of which so many more have ended."""
    ahead, found = ReadAhead(), []
    for at, number in ended:
        ahead.ended += number
        found.append(ahead.attempts(at))
    return found


def test_quick_tasks_have_the_next_ones_ahead() -> None:
    found = ahead_of([(1 + n * 0.002, 40) for n in range(200)])  # 20,000 a second
    assert 95 <= found[-1] <= 100
    assert found[25] > 50, "soon after they came"


def test_slow_tasks_that_end_together_have_none_ahead() -> None:
    # Sixteen slots whose tasks take 50 ms and began at once; the scheduler looks each 2 ms.
    found = ahead_of([(1 + n * 0.002, 16 if n % 25 == 0 else 0) for n in range(500)])
    assert max(found) <= 3


def test_after_a_silence_the_past_does_not_count() -> None:
    found = ahead_of([(1 + n * 0.002, 40) for n in range(200)] + [(2.0, 0)])
    assert found[-1] == 0


def test_there_is_a_bound() -> None:
    assert ahead_of([(1 + n * 0.002, 4_000) for n in range(200)])[-1] == READAHEAD_MAX
