"""The answer to a claim in an async transaction."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any


class Awaited:
    """An answer that is awaited. Its truth cannot be asked before: a coroutine is always true, so
    effects would happen without a claim."""

    def __init__(self, answer: Coroutine[Any, Any, bool]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._answer.__await__()

    def __bool__(self) -> bool:
        self._answer.close()
        raise TypeError("the answer is awaited: `if await ctx.claim(tx):`")
