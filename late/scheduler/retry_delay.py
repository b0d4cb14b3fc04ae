"""The wait before a failed task runs again. Pure."""

from __future__ import annotations

from late.model.task import Policy


def retry_delay_us(policy: Policy, attempts: int, jitter: float) -> int:
    """Return the microseconds to wait after `attempts` (>= 1) failed attempts.

        ceiling(n) = min(cap, base * factor^(n - 1))
        wait = jitter * ceiling, jitter in [0, 1)

    Full jitter spreads a herd best for the same total load; without `policy.full_jitter` the wait
    is the ceiling. Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The
    random number comes from outside, so that this is a function of its arguments.
    """
    # The exponent is bounded so that the power cannot overflow; the cap is reached long before.
    ceiling = min(float(policy.cap_us), policy.base_us * policy.factor ** min(attempts - 1, 500))
    return int(ceiling * jitter if policy.full_jitter else ceiling)
