"""The order of the drains, and each shape beside the plain ones right before and after it. Pure.

A processor of a shared host changes its speed within minutes, so a ratio is of neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

PLAIN = "plain"
RATIOS = {"of_plain": "per_s", "cpu_of_plain": "worker_us"}


def chain(names: Iterable[str], turn: int) -> list[str]:
    """Put the plain shape first, last and between any two others; every other turn backwards."""
    others = [name for name in names if name != PLAIN]
    if turn % 2:
        others.reverse()
    return [PLAIN, *(each for name in others for each in (name, PLAIN))]


def paired(
    names: Sequence[str], found: Sequence[Mapping[str, Any] | None]
) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of each shape of a chain, with its ratios to the mean of the plain ones
    around it; None stands for a drain that gave up."""
    result: dict[str, list[dict[str, Any]]] = {}
    for place, (name, one) in enumerate(zip(names, found, strict=True)):
        if one is None:
            continue
        beside = found[max(0, place - 1) : place] + found[place + 1 : place + 2]
        plain = [each for each in beside if each is not None] if name != PLAIN else [one]
        ratios = {
            ratio: one[figure] / mean(each[figure] for each in plain)
            for ratio, figure in RATIOS.items()
            if plain
        }
        result.setdefault(name, []).append(dict(one) | ratios)
    return result
