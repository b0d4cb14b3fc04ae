"""Services with a JWT: what is taken, what is refused, and what ends with it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from late import events
from late.api.errors import Unavailable
from late.api.identity import provider as providers
from late.api.identity.fetch import fetch
from late.api.identity.provider import Provider, keys_of
from late.api.identity.roles import RoleMap
from late.api.identity.services import Services
from late.api.identity.settings import JwtSettings
from late.errors import ConfigError
from late.v1 import queue_pb2_grpc
from late.worker.background import BackgroundService
from tests.security.issuer import AUDIENCE, CLIENT, EC, OTHER, RSA, Issuer, issuer
from tests.security.test_ended_tokens import Talk
from tests.unit.api_kit import Served, served
from tests.unit.dispatcher_kit import attempt

QUEUES, TASKS = "/v1/queues", "/v1/queues/payments/tasks"
RECEIVE = "/v1/queues/payments/receive"
PUT = {"name": "charge", "payload": {}}
RULES = (
    "service:svc-orders=enqueue+consume:payments",
    "service:all=operate",
    "scope:late.put=enqueue:mail",
)


def clock() -> int:
    return time.time_ns() // 1_000


@pytest.fixture(name="it")
def _issuer() -> Iterator[Issuer]:
    with issuer() as made:
        yield made


@asynccontextmanager
async def open_to(it: Issuer, folder: Path, **options: Any) -> AsyncIterator[Served]:
    """The interfaces, for services of the issuer."""
    settings = JwtSettings(issuer=it.url, audience=AUDIENCE)
    services = Services(settings, Provider(it.url, **options), RoleMap(RULES))
    async with served(folder, auth=True, services=services, now_us=clock) as there:
        yield there


async def answers(there: Served, text: str, path: str = QUEUES, value: Any = None) -> int:
    there.call.token = text
    answer = await there.call("GET" if value is None else "POST", path, value)
    if answer.status == 401:
        assert b"bearer token is needed" in answer.body, "the reason is not told"
    return answer.status


async def over_grpc(there: Served, text: str) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{there.rpc.port}") as channel:
        while True:
            talk = Talk(queue_pb2_grpc.QueueStub(channel), text)
            try:
                await talk.begin(credit=0)
            except (AssertionError, grpc.aio.AioRpcError):
                # The client itself says this of a call that was ended while it wrote.
                if await talk.call.details() == "Internal error from Core":
                    continue
                return (await talk.code()).name
            talk.call.cancel()
            return "OK"


async def test_a_service_has_the_rights_of_its_rules_over_http_and_grpc(
    it: Issuer, tmp_path: Path
) -> None:
    it.keys["k2"] = EC
    async with open_to(it, tmp_path) as there:
        for kid in ("k1", "k2"):
            text = it.sign(it.claims(), kid=kid)
            assert await answers(there, text, TASKS, PUT) == 201
            assert await answers(there, text, RECEIVE, {"wait_s": 0}) == 200
            assert await answers(there, text, "/v1/queues/other/receive", {"wait_s": 0}) == 403
            assert await over_grpc(there, text) == "OK"
        several = it.service(aud=["other", AUDIENCE], sub="nobody", scope="openid late.put")
        assert await answers(there, several, TASKS, PUT) == 403
        assert await answers(there, several) == 200
        stranger = it.service(sub="stranger")
        assert await answers(there, stranger) == 403
        assert await over_grpc(there, stranger) == "PERMISSION_DENIED"
        # The tokens of `late token` go on as they are.
        mine = there.token("ci", "view")
        await there.service.access.load()
        assert await answers(there, mine) == 200
        assert it.asked.count("/keys") == 1, "the keys are kept"


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _hs256(it: Issuer, secret: bytes, **head: Any) -> str:
    """A token that takes the public key for a secret."""
    body = f"{_part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'k1', **head})}.{_part(it.claims())}"
    mark = hmac.new(secret, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"


def _changed(it: Issuer) -> str:
    head, _, mark = it.service().split(".")
    return f"{head}.{_part(it.claims(sub='all'))}.{mark}"


NOW = int(time.time())
ATTACKS: dict[str, Callable[[Issuer], str]] = {
    "alg none": lambda it: f"{_part({'alg': 'none', 'kid': 'k1'})}.{_part(it.claims())}.",
    "alg None": lambda it: f"{_part({'alg': 'None', 'kid': 'k1'})}.{_part(it.claims())}.x",
    "HS256 with the public key": lambda it: _hs256(it, it.public),
    "HS256 with its modulus": lambda it: _hs256(it, b"%d" % RSA.public_key().public_numbers().n),
    "another key": lambda it: it.sign(it.claims(), key=OTHER),
    "a key of its own": lambda it: it.sign(
        it.claims(), key=OTHER, head={"jku": f"{it.url}/keys", "jwk": {"kty": "RSA"}}
    ),
    "changed": _changed,
    "PS of a key for RS": lambda it: it.sign(
        it.claims(), kid="only-rs", key=RSA, algorithm="PS256"
    ),
    "EC under the id of RSA": lambda it: it.sign(it.claims(), key=EC),
    "wrong audience": lambda it: it.service(aud="another"),
    "an ID token's audience": lambda it: it.service(aud=CLIENT),
    "audience of a list": lambda it: it.service(aud=["a", "b"]),
    "no audience": lambda it: it.service(aud=None),
    "wrong issuer": lambda it: it.service(iss="https://evil.example"),
    "issuer with a slash": lambda it: it.service(iss=f"{it.url}/"),
    "no issuer": lambda it: it.service(iss=None),
    "expired": lambda it: it.service(exp=NOW - 1),
    "no expiry": lambda it: it.service(exp=None),
    "expiry of a text": lambda it: it.service(exp="soon"),
    "expiry without end": lambda it: it.service(exp=float("inf")),
    "true expiry": lambda it: it.service(exp=True),
    "not yet valid": lambda it: it.service(nbf=NOW + 3_600),
    "made in the future": lambda it: it.service(iat=NOW + 3_600),
    "no subject": lambda it: it.service(sub=None),
    "a subject of two lines": lambda it: it.service(sub="svc-orders\nall"),
    "an empty subject": lambda it: it.service(sub=""),
    "critical": lambda it: it.sign(it.claims(), head={"crit": ["exp"]}),
    "a logout token": lambda it: it.sign(it.claims(), head={"typ": "logout+jwt"}),
    "unknown key": lambda it: it.sign(it.claims(), kid="k9", key=RSA),
    "too long": lambda it: it.service(more="x" * 9_000),
    "junk": lambda it: "a.b.c",
    "empty parts": lambda it: "..",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_is_refused(it: Issuer, tmp_path: Path, attack: str) -> None:
    only = {**providers_jwk(it), "kid": "only-rs", "alg": "RS256"}
    it.more_keys = [only, {"kty": "oct", "kid": "k9", "k": _part("x" * 32)}]
    async with open_to(it, tmp_path) as there:
        assert await answers(there, it.service()) == 200
        text = ATTACKS[attack](it)
        assert await answers(there, text) == 401
        assert await over_grpc(there, text) == "UNAUTHENTICATED"


def providers_jwk(it: Issuer) -> dict[str, Any]:
    found: dict[str, Any] = it.answer("/keys", {}, "")[1]["keys"][0]
    return found


async def test_clocks_that_differ_a_little_are_allowed_for(it: Issuer, tmp_path: Path) -> None:
    async with open_to(it, tmp_path) as there:
        soon = int(time.time()) + 20
        assert await answers(there, it.service(nbf=soon, iat=soon)) == 200


async def test_a_rotation_is_followed_and_an_old_key_ends(it: Issuer, tmp_path: Path) -> None:
    now = 0.0
    async with open_to(it, tmp_path, clock=lambda: now) as there:
        old = it.service()
        assert await answers(there, old) == 200
        it.keys = {"k2": OTHER}
        new = it.sign(it.claims(), kid="k2")
        assert await answers(there, new) == 401, "somebody has asked a moment ago"
        now += providers.REST_S
        assert await answers(there, new) == 200
        assert await answers(there, old) == 401


async def test_unknown_keys_do_not_storm_the_issuer(it: Issuer, tmp_path: Path) -> None:
    now = 0.0
    async with open_to(it, tmp_path, clock=lambda: now) as there:
        assert await answers(there, it.service()) == 200
        before = len(it.asked)
        strange = [it.sign(it.claims(), kid=f"x{n}", key=OTHER) for n in range(20)]
        now += providers.REST_S
        found = [
            status
            # No more at once: the clients' threads are those of the server, which is this process.
            for some in (strange[n : n + 3] for n in range(0, len(strange), 3))
            for status in await asyncio.gather(*(status_of(there, text) for text in some))
        ]
        assert set(found) <= {401, 429}
        assert len(it.asked) - before == 2, "one look at the issuer: its addresses and its keys"
        foreign = it.sign(it.claims(iss="https://evil.example"), kid="x", key=OTHER)
        now += providers.REST_S
        await status_of(there, foreign)
        assert len(it.asked) - before == 2, "another issuer's token is none of ours"
        assert await answers(there, it.service()) == 200


async def status_of(there: Served, text: str) -> int:
    sent = {"Authorization": f"Bearer {text}"}
    return (await there.call("GET", QUEUES, headers=sent)).status


async def test_while_the_issuer_is_away_known_keys_count_and_for_a_day_only(
    it: Issuer, tmp_path: Path
) -> None:
    now = 0.0
    told: list[dict[str, Any]] = []
    unfollow = events.default.subscribe(
        lambda event, values: told.append(dict(values)), [events.ISSUER_AWAY]
    )
    try:
        it.away = True
        async with open_to(it, tmp_path, clock=lambda: now) as there:
            assert await answers(there, it.service()) == 503
            it.away = False
            now += providers.REST_S
            assert await answers(there, it.service()) == 200
            it.away = True
            await there.service.access._services.provider.refresh()  # type: ignore[union-attr]
            now += providers.TRUST_S - 1
            assert await answers(there, it.service()) == 200
            now += providers.REST_S + 1
            assert await answers(there, it.service()) == 503
            assert len(told) == 2, "once for each time that it goes"
    finally:
        unfollow()


async def test_what_is_open_ends_with_the_token(it: Issuer, tmp_path: Path) -> None:
    async with (
        open_to(it, tmp_path) as there,
        grpc.aio.insecure_channel(f"127.0.0.1:{there.rpc.port}") as channel,
    ):
        watching = asyncio.create_task(BackgroundService(there.service.access.jobs()).run())
        there.call.token = it.service(exp=int(time.time()) + 3)
        talk = Talk(queue_pb2_grpc.QueueStub(channel), there.call.token)
        await talk.begin(credit=1)
        poll = asyncio.create_task(there.call("POST", RECEIVE, {"wait_s": 60}))
        async with asyncio.timeout(120):
            assert await talk.code() is grpc.StatusCode.UNAUTHENTICATED
            assert (await poll).status == 401
        watching.cancel()


async def test_what_a_service_took_is_its_own_under_its_next_token(
    it: Issuer, tmp_path: Path
) -> None:
    now_us = clock()
    first = it.service(exp=now_us // 1_000_000 + 300)
    settings = JwtSettings(issuer=it.url, audience=AUDIENCE)
    services = Services(settings, Provider(it.url), RoleMap(RULES))
    async with served(tmp_path, auth=True, services=services, now_us=lambda: now_us) as there:
        taking = asyncio.create_task(take(there, first))
        await there.rig.room(1)
        there.rig.pool.submit([attempt()])
        receipt = await taking
        now_us += 301_000_000
        await there.service.access.end()
        assert await answers(there, first) == 401
        later = it.service(exp=now_us // 1_000_000 + 300)
        assert await answers(there, later, "/v1/ack", {"receipt": receipt}) == 204
        (outcome,) = await there.rig.ended(1)
        assert outcome.kind == "done"


async def take(there: Served, text: str) -> str:
    there.call.token = text
    answer = await there.call("POST", RECEIVE, {"wait_s": 30, "visibility_s": 3_600})
    (task,) = answer.json["tasks"]
    found: str = task["receipt"]
    return found


def test_only_public_asymmetric_keys_of_a_good_size_are_taken(it: Issuer) -> None:
    good = providers_jwk(it)
    small = rsa.generate_private_key(65_537, 1_024).public_key().public_numbers()
    n = base64.urlsafe_b64encode(small.n.to_bytes(128, "big")).rstrip(b"=").decode()
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA))
    for wrong in (
        {"kty": "oct", "k": "c2VjcmV0", "kid": "a"},
        {**good, "use": "enc"},
        {**good, "alg": "HS256"},
        {**good, "alg": "none"},
        {**good, "kty": "RSA", "n": n},
        {**private, "kid": "p"},
        {"kty": "EC", "crv": "secp256k1", "x": "a", "y": "b"},
        {"kty": "RSA"},
        "text",
        None,
    ):
        assert keys_of([wrong]) == {}, wrong
    assert list(keys_of([good])) == ["k1"]
    assert keys_of("keys") == {}


@pytest.mark.parametrize(
    "url",
    ["http://issuer.example", "http://127.0.0.1.evil.example", "ftp://127.0.0.1", "issuer", "",
     "https://user@issuer.example", "https://", "https://a\nb", "file:///etc/passwd"],
)  # fmt: skip
def test_an_issuer_is_asked_over_tls_or_on_this_machine(url: str) -> None:
    with pytest.raises(ConfigError):
        Provider(url)
    for fine in ("https://issuer.example/realm", "http://127.0.0.1:80", "http://[::1]:1"):
        Provider(fine)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n", b""])
async def test_an_issuer_that_speaks_no_http_is_away(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    told: list[Any] = []
    unfollow = events.default.subscribe(
        lambda event, values: told.append(values), [events.ISSUER_AWAY]
    )
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable):
            await fetch(url)
        found = Provider(url)
        await found.prepare("k1")
        assert not found.known
    unfollow()
    assert len(told) == 1


async def test_an_issuer_that_calls_itself_otherwise_or_answers_too_much_is_not_believed(
    it: Issuer, tmp_path: Path
) -> None:
    for metadata in (
        {"issuer": "https://evil.example"},
        {"jwks_uri": "http://evil.example/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"more": "x" * 600_000},
    ):
        it.metadata = metadata
        found = Provider(it.url)
        await found.prepare("k1")
        assert not found.known, metadata
