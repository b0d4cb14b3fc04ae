"""URLs that put one kind of task: what one opens, and all that it does not."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
import pytest

import late
from late.api.http.signed_urls import SignedPut, is_signed
from late.api.limits import Pace
from late.api.settings import ServeSettings
from late.control import Control
from late.errors import ConfigError, InvalidName
from late.model.access import tokens
from tests.unit.api_kit import Answer, Served, served
from tests.unit.cli_kit import Cli
from tests.unit.dispatcher_kit import NOW_US

NOW_S = NOW_US / 1_000_000
SERVER = "https://queue.example:7280"
TOKEN = "late.web." + "s" * 43


def sign(token: str = TOKEN, queue: str = "payments", name: str = "charge", **options: Any) -> str:
    return late.sign_url(SERVER, token, queue, name, **{"now_s": NOW_S, **options})


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def changed(url: str, **fields: str | None) -> str:
    """The path of `url` with other fields, or without those that are None."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **fields}
    return f"{parts.path}?{urlencode({k: v for k, v in query.items() if v is not None})}"


@asynccontextmanager
async def server(folder: Path, **options: Any) -> AsyncIterator[tuple[Served, str]]:
    """A server, and a token of it to enqueue into `pay*`."""
    async with served(folder, auth=True, signed_urls=True, **options) as it:
        token = it.token("web", "enqueue", queues=("pay*",))
        await it.service.access.load()
        yield it, token


async def post(it: Served, path: str, value: Any = None, **options: Any) -> Answer:
    return await it.call("POST", path, value, **options)


async def test_whoever_has_the_url_puts_its_task_and_needs_no_token(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        url = sign(token)
        assert token.rpartition(".")[2] not in url
        for trip in (7, 8):
            answer = await post(it, path_of(url), {"trip": trip})
            assert (answer.status, answer.json["created"]) == (201, True)
        with Control(it.url) as control:
            found = control.tasks.show(answer.json["task_id"], payload=True)
        assert (found.queue, found.name, found.payload) == ("payments", "charge", '{"trip":8}')


async def test_a_url_that_was_altered_is_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        other = it.token("other", "enqueue", queues=("pay*",))
        await it.service.access.load()
        url = sign(token, max_bytes=50, once="trip-7")
        paths = [
            path_of(url).replace("/payments/", "/payrolls/"),
            changed(url, name="refund"),
            changed(url, token="other"),
            changed(url, token="nobody"),
            changed(url, expires=str(int(NOW_S) + 7_200)),
            changed(url, max_bytes=None),
            changed(url, max_bytes="5000"),
            changed(url, once=None),
            changed(url, once="trip-8"),
            changed(url, payload="{}"),
            changed(url, signature=None),
            changed(url, signature="0" * 64),
            changed(url, signature="é"),
            changed(url, signature=dict(parse_qsl(url))["signature"].upper()),
            changed(sign(other), token="web"),
            changed(sign(token, name="charge", queue="payrolls", once="x"), once="x\n"),
        ]
        # The bounds on failed sign-ins are for another test.
        it.service.access.failures._pace = Pace(1_000, 1_000)
        for path in paths:
            answer = await post(it, path, {"trip": 7})
            assert answer.status in (400, 401), path
            assert "task_id" not in answer.json
        fine = await post(it, path_of(url), {"trip": 7})
        assert fine.status == 201


async def test_a_url_opens_nothing_else(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        query = urlsplit(sign(token)).query
        for method, path, body in (
            ("POST", "/v1/queues/payments/tasks", {"name": "charge"}),
            ("POST", "/v1/queues/payments/receive", {"wait_s": 0}),
            ("POST", "/v1/tasks", {"tasks": []}),
            ("GET", "/v1/queues/payments", None),
            ("GET", "/v1/queues", None),
        ):
            assert (await it.call(method, f"{path}?{query}", body)).status == 401, path
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            answer = await it.call(method, path_of(sign(token)))
            assert answer.status == 405
        assert (await it.call("GET", "/v1/queues")).status == 401


async def test_a_url_is_over_at_its_time(tmp_path: Path) -> None:
    now = [NOW_US]
    async with server(tmp_path, now_us=lambda: now[0]) as (it, token):
        path = path_of(sign(token, expires_s=60))
        now[0] += 59_000_000
        assert (await post(it, path, {})).status == 201
        now[0] += 2_000_000
        late_one = await post(it, path, {})
        assert (late_one.status, late_one.json["error"]) == (401, "unauthenticated")


async def test_a_url_that_is_valid_for_too_long_is_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        far = path_of(sign(token, now_s=NOW_S + 8 * 86_400))
        assert (await post(it, far, {})).status == 400
        week = path_of(sign(token, now_s=NOW_S + 60, expires_s=7 * 86_400))
        assert (await post(it, week, {})).status == 201


async def test_a_url_ends_with_its_token(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        path = path_of(sign(token, max_bytes=2))
        assert (await post(it, path, {})).status == 201
        with Control(it.url) as control:
            control.tokens.revoke("web")
        await it.service.access.load()
        assert (await post(it, path, {})).status == 401
        assert (await post(it, path, {"trip": 7})).status == 401, "before its body is read"


async def test_a_url_allows_no_more_than_its_token(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        viewer = it.token("viewer", "view", "consume")
        await it.service.access.load()
        assert (await post(it, path_of(sign(token, "mail")), {})).status == 403
        assert (await post(it, path_of(sign(viewer)), {})).status == 403


async def test_a_token_of_a_certificate_signs_nothing(tmp_path: Path) -> None:
    """What is kept of it in place of a hash is the same for all, and known to everybody."""
    async with server(tmp_path) as (it, _):
        with Control(it.url) as control:
            control.tokens.create("pay.example", scopes=["enqueue"], queues=["*"], certificate=True)
        await it.service.access.load()
        asked = SignedPut(name="charge", token="pay.example", expires=int(NOW_S) + 60)
        fields = msgspec.structs.asdict(asked)
        for key in (tokens.CERTIFICATE.encode(), b""):
            text = f"late.url.1\nPOST\npayments\ncharge\npay.example\n{asked.expires}\n\n\n"
            fields["signature"] = hmac.digest(key, text.encode(), "sha256").hex()
            query = urlencode({k: v for k, v in fields.items() if v is not None})
            assert (await post(it, f"/v1/queues/payments/put?{query}", {})).status == 401


async def test_a_single_use_is_one(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        path = path_of(sign(token, once=True))
        assert (await post(it, path, {"trip": 7})).status == 201
        for trip in (7, 8):
            again = await post(it, path, {"trip": trip})
            assert (again.status, again.json["error"]) == (409, "key_conflict")
            assert again.json["message"] == "this URL was for one use, and has been used"
        assert (await post(it, path_of(sign(token, once=True)), {})).status == 201
        by_mail, by_phone = sign(token, once="trip-7"), sign(token, once="trip-7", expires_s=60)
        assert (await post(it, path_of(by_mail), {})).status == 201
        assert (await post(it, path_of(by_phone), {})).status == 409


async def test_a_use_that_failed_is_not_used_up(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        path = path_of(sign(token, once=True))
        assert (await post(it, path, [1])).status == 400
        assert (await post(it, path, {"trip": 7})).status == 201


async def test_a_fixed_payload_is_what_is_put(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        url = sign(token, payload={"text": "Grüße & = \n"})
        answer = await post(it, path_of(url))
        assert answer.status == 201
        with Control(it.url) as control:
            found = control.tasks.show(answer.json["task_id"], payload=True).payload
        assert msgspec.json.decode(str(found)) == {"text": "Grüße & = \n"}
        more = await post(it, path_of(url), {"text": "mine"})
        assert (more.status, more.json["error"]) == (400, "bad_request")
        assert (await post(it, changed(url, payload='{"text":"mine"}'))).status == 401


async def test_a_body_is_json_and_no_longer_than_the_url_allows(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        path = path_of(sign(token, max_bytes=20))
        assert (await post(it, path, raw=b'{"a": "123456789"}')).status == 201
        large = await post(it, path, raw=b'{"a": "123456789012"}')
        assert (large.status, large.json["error"]) == (413, "too_large")
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert (await post(it, path, raw=b"a=b", headers=form)).status == 415
        assert (await post(it, path, raw=b"[1]")).status == 400


async def test_wrong_signatures_are_slowed_down_as_wrong_tokens_are(tmp_path: Path) -> None:
    async with server(tmp_path) as (it, token):
        wrong = changed(sign(token), signature="0" * 64)
        found = [(await post(it, wrong, {})).status for _ in range(14)]
        assert found[:10] == [401] * 10
        assert 429 in found[10:]
        assert (await post(it, path_of(sign(token)), {})).status == 201


async def test_urls_have_a_rate_of_their_own(tmp_path: Path) -> None:
    async with server(tmp_path, pace=Pace(0.001, 2)) as (it, token):
        path = path_of(sign(token))
        assert [(await post(it, path, {})).status for _ in range(3)] == [201, 201, 429]
        it.call.token = token
        mine = await post(it, "/v1/queues/payments/tasks", {"name": "charge"})
        assert mine.status == 201


async def test_a_server_takes_them_only_if_it_was_told_to(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it:
        token = it.token("web", "enqueue")
        await it.service.access.load()
        answer = await post(it, path_of(sign(token)), {})
        assert (answer.status, answer.json["error"]) == (404, "not_found")
        assert "--signed-urls" in answer.json["message"]


def test_without_tokens_there_is_nothing_to_sign_with() -> None:
    with pytest.raises(ConfigError, match="--signed-urls takes --auth"):
        ServeSettings(signed_urls=True).checked()
    ServeSettings(signed_urls=True, auth=True).checked()


def test_the_signature_is_what_the_page_says() -> None:
    """Others make URLs in other languages by these lines."""
    url = sign(max_bytes=100, once="k")
    query = dict(parse_qsl(urlsplit(url).query))
    key = hashlib.sha256(TOKEN.encode()).digest()
    lines = ["late.url.1", "POST", "payments", "charge", "web", query["expires"], "100", "k", ""]
    assert query["signature"] == hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()


def test_no_two_requests_have_one_signature() -> None:
    digest = tokens.hash_of(TOKEN)
    made = msgspec.convert(dict(parse_qsl(urlsplit(sign()).query)), SignedPut, strict=False)
    assert is_signed(digest, "payments", made)
    assert not is_signed(None, "payments", made)
    assert not is_signed(tokens.hash_of("late.web.x"), "payments", made)
    for field, value in (("name", "b"), ("max_bytes", 1), ("once", "1"), ("payload", "{}")):
        other = msgspec.structs.replace(made, **{field: value})
        assert not is_signed(digest, "payments", other), field


BAD: list[tuple[Callable[[], str], type[Exception], str]] = [
    (lambda: sign("secret"), ConfigError, "late.NAME.SECRET"),
    (lambda: sign(queue="a b"), InvalidName, "queue"),
    (lambda: sign(name="a\nb"), InvalidName, "task name"),
    (lambda: sign(once="a b"), InvalidName, "once"),
    (lambda: sign(once=""), InvalidName, "once"),
    (lambda: sign(expires_s=0), ConfigError, "seconds"),
    (lambda: sign(expires_s=8 * 86_400), ConfigError, "seconds"),
    (lambda: sign(expires_s=float("nan")), ConfigError, "seconds"),
    (lambda: sign(max_bytes=1), ConfigError, "bytes"),
    (lambda: sign(max_bytes=9, payload={}), ConfigError, "not both"),
    (lambda: sign(payload={"a": "b" * 5_000}), ConfigError, "bytes"),
    (lambda: late.sign_url("queue.example", TOKEN, "payments", "charge"), ConfigError, "server"),
    (lambda: late.sign_url("ftp://a", TOKEN, "payments", "charge"), ConfigError, "server"),
    (lambda: late.sign_url("http://a/?b", TOKEN, "payments", "charge"), ConfigError, "server"),
]


@pytest.mark.parametrize(("make", "kind", "words"), BAD)
def test_a_wrong_value_is_named_and_the_token_is_not(
    make: Callable[[], str], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as raised:
        make()
    assert "sss" not in str(raised.value)


def test_the_command_prints_a_url(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LATE_TOKEN", TOKEN)
    monkeypatch.delenv("LATE_URL", raising=False)
    words = ("url", "sign", "payments", "charge", "--server", SERVER)
    url = cli.fine(*words, "--expires", "2h", "--once-key", "k").out.strip()
    found = msgspec.convert(dict(parse_qsl(urlsplit(url).query)), SignedPut, strict=False)
    assert is_signed(tokens.hash_of(TOKEN), "payments", found)
    assert (url.startswith(f"{SERVER}/v1/queues/payments/put?"), found.once) == (True, "k")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    other = cli.fine(
        *words, "--token", f"file:{tmp_path}/token", "--payload", '{"a": 1}', "--json"
    ).json
    query = dict(parse_qsl(urlsplit(other["url"]).query))
    assert (query["payload"], int(query["expires"]) * 1_000_000) == (
        '{"a":1}',
        other["expires_at_us"],
    )
    assert "not the token itself" in cli.refused(*words, "--token", TOKEN)
    assert "once" in cli.refused(*words, "--once-key", "")
    monkeypatch.delenv("LATE_TOKEN")
    assert "LATE_TOKEN is empty or not set" in cli.refused(*words)
