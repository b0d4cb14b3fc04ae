"""Answers of an HTTP target that are not plain `application/json`: how they are read."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest

from late.dispatcher.push import responses
from tests.integration.push_kit import pool_of
from tests.integration.test_http_push import answer, ask, service
from tests.unit.dispatcher_kit import attempt

RETRY = {"outcome": "retry", "after_s": 7, "reason": "bank busy"}
RAW = json.dumps(RETRY).encode()


@pytest.mark.parametrize(
    "content_type",
    ["text/plain; charset=utf-8", "text/html", "Application/JSON", "application/problem+json", ""],
)
async def test_an_outcome_counts_under_any_content_type(content_type: str) -> None:
    outcome = await ask(answer(200, RETRY, content_type=content_type))
    assert (outcome.kind, outcome.after_us) == ("failed", 7_000_000)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [(b"\xef\xbb\xbf" + RAW, "identity"), (gzip.compress(RAW, mtime=0), "gzip"),
     (gzip.compress(RAW, mtime=0), "x-gzip"), (zlib.compress(RAW), "Deflate")],
)  # fmt: skip
async def test_an_outcome_may_be_packed_or_have_a_mark(body: bytes, encoding: str) -> None:
    outcome = await ask(answer(200, body, content_encoding=encoding))
    assert (outcome.kind, outcome.after_us) == ("failed", 7_000_000)


@pytest.mark.parametrize(
    "body",
    [
        RAW[:-3],
        b'{"outcome":"fail","reason":"a\\ud800b"}',
        '{"outcome":"fail","reason":"für"}'.encode("latin1"),
        b'{"outcome":"retry","after_s":NaN}',
        b'{"outcome":"fail","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"outcome":"fail","reason":"' + b"x" * responses.ANSWER_BYTES_MAX + b'"}',
    ],
    ids=["cut", "surrogate", "latin1", "nan", "deep", "long"],
)
async def test_an_outcome_that_cannot_be_read_is_a_failed_attempt(body: bytes) -> None:
    outcome = await ask(answer(200, body))
    assert (outcome.kind, outcome.reason, outcome.retryable) == ("failed", "bad_answer", True)
    assert "cannot be read" in (outcome.error or "")


async def test_an_answer_in_an_unknown_packing_is_a_failed_attempt() -> None:
    for body, encoding in ((RAW, "br"), (b"no gzip", "gzip")):
        outcome = await ask(answer(200, body, content_encoding=encoding))
        assert (outcome.kind, outcome.reason) == ("failed", "bad_answer")
        assert "content-encoding" in (outcome.error or "")
    assert (await ask(answer(200, b"", content_encoding="br"))).kind == "done"
    page = answer(200, b"packed", content_encoding="br", content_type="text/html")
    assert (await ask(page)).kind == "done", "no service of late answers so"
    refused = await ask(answer(404, RAW, content_encoding="br"))
    assert refused.error == "target mail: HTTP 404"


@pytest.mark.parametrize(
    "body",
    [b'{"result": NaN}', b'{"result": "a\\ud800b"}',
     b'{"result": "' + b"x" * responses.ANSWER_BYTES_MAX + b'"}',
     b'{"result": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ids=["nan", "surrogate", "long", "deep"],
)  # fmt: skip
async def test_a_result_that_cannot_be_read_is_refused_where_it_is_kept(body: bytes) -> None:
    async with service() as (target, made), pool_of(made) as pool:
        target.reply = answer(200, body, content_type="text/plain")
        kept = await pool.one(msgspec.structs.replace(attempt(), keeps_result=True))
        assert (kept.kind, kept.reason) == ("dead", "invalid_result")
        assert (await pool.one(attempt())).kind == "done"


@pytest.mark.parametrize("body", [b"ok", b"<html>{}</html>", b"", b"[1,", {"status": "ok"}])
async def test_a_service_that_knows_nothing_of_late_has_done_it(body: Any) -> None:
    wanted = msgspec.structs.replace(attempt(), keeps_result=True)
    async with service() as (target, made), pool_of(made) as pool:
        target.reply = answer(200, body, content_type="text/html")
        done = await pool.one(wanted)
        assert (done.kind, done.result) == ("done", None)
