"""How long to wait before the next attempt.

    ceiling(n) = min(cap, base * factor^(n - 1))        wait = jitter * ceiling, jitter in [0, 1)

Full jitter spreads a herd best for the same total load. Source: "Exponential Backoff And Jitter",
AWS Architecture Blog, 2015. The random number comes from outside: this file is a function.
"""

from __future__ import annotations

from late.model.task import Policy


def backoff_us(policy: Policy, attempts: int, jitter: float) -> int:
    """Microseconds to wait after `attempts` (>= 1) failed attempts.

    With `policy.full_jitter` the wait is `jitter` of the ceiling, else the ceiling itself.
    """
    # The exponent is bounded so that the power cannot overflow; the cap is reached long before.
    ceiling = min(float(policy.cap_us), policy.base_us * policy.factor ** min(attempts - 1, 500))
    return int(ceiling * jitter if policy.full_jitter else ceiling)
