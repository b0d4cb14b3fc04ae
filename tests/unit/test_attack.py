"""The parts of `make attack` that need no server."""

from __future__ import annotations

import random

from tests.attack import http_corpus, rpc_fuzz
from tests.attack.table import Row, render


def test_a_wrong_outcome_is_seen_in_the_table() -> None:
    good, bad = Row("a flood", "sqlite"), Row("fuzz", "sqlite", notes=["a | b"])
    good.add("200")
    bad.add("404")
    bad.add("500", wrong="GET /: 500")
    assert render([good, bad]).splitlines()[2:] == [
        "| a flood | sqlite | 1 | 200: 1 | yes |",
        "| fuzz | sqlite | 2 | 404: 1; 500: 1; a \\| b | **no: 1** |",
    ]


def test_the_inputs_are_as_many_as_they_were() -> None:
    names = [name for name, _ in http_corpus.corpus()]
    assert len(names) >= 130
    calls, frames = (
        len([*make(random.Random(1))]) for make in (rpc_fuzz.messages, rpc_fuzz.frames)
    )
    assert calls + frames == 800


def test_what_must_not_be_is_told() -> None:
    wrong = http_corpus._wrong
    hidden = http_corpus.HIDDEN
    assert wrong("x", hidden, "closed", b"", [400]) is None
    assert wrong("x", hidden, "closed", b"", [404, 404]) is not None
    assert wrong("x", b"", "closed", b"", [500]) is not None
    assert wrong("x", b"", "hangs", b"", []) is not None
