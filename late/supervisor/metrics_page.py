"""Joins the `/metrics` pages of several processes to one: each series gets a label with the number
of its process, each metric keeps one HELP and one TYPE. Pure.

Source: prometheus/docs, "Text-based format": all lines of one metric must be one group.
"""

from __future__ import annotations

from collections.abc import Mapping

LABEL = "process"


def join(pages: Mapping[int, bytes]) -> bytes:
    """Join pages by the number of the process. In each page HELP and TYPE of a metric come right
    before its series, as `late.observability.metrics` writes them."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, page in sorted(pages.items()):
        metric = ""
        for line in page.decode("utf-8").splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                metric = line.split(" ", 3)[2]
                head = heads.setdefault(metric, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(metric, []).append(_labelled(line, number))
    lines = [line for metric in heads for line in heads[metric] + samples.get(metric, [])]
    return "".join(f"{line}\n" for line in lines).encode("utf-8")


def _labelled(line: str, number: int) -> str:
    # The value and what follows hold no brace, and a name holds neither brace nor space.
    label = f'{LABEL}="{number}"'
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{label},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"
