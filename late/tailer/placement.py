"""Name the worker that should own a key, by weighted rendezvous hashing.

Every worker computes the same answer from the same list of peers, with no coordinator and no
table. For each key every node gets a score that depends on the two alone, and the highest wins::

    h     = hash(node, key), uniform in (0, 1)
    score = -weight / ln(h)

`-ln(h)` is exponentially distributed with rate 1, so dividing by the weight makes the node with
weight `w` win with probability `w / sum(weights)`. When a node leaves, only its own keys move;
when one joins, it takes its share from all others equally; nothing else moves at all.

Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous" (1996); the weighted
form after Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import xxhash


def owner(key: str, weights: Mapping[str, float]) -> str:
    """Return the node that owns `key`. Equal scores go to the greater name.

    Args:
        weights: node -> positive, finite weight; not empty.
    """
    return max(weights, key=lambda node: (_score(key, node, weights[node]), node))


def _score(key: str, node: str, weight: float) -> float:
    # 52 bits and a half are exact in a double and never 0 or 1, where the logarithm is no use.
    # A worker's id holds no `|`, so two pairs never hash the same text.
    h = ((xxhash.xxh3_64_intdigest(f"{node}|{key}".encode()) >> 12) + 0.5) / 2**52
    return -weight / math.log(h)
