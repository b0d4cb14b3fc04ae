"""Receipts and signatures that somebody made up, or changed: none is taken."""

from __future__ import annotations

import base64
import random
import time
from urllib.parse import parse_qsl, urlencode

import msgspec

from late.api.http.signed_urls import sign_url
from late.api.pull.receipts import Receipt, seal
from late.dispatcher.push.webhook_signature import PREFIX, BadSignature, sign, verify
from late.dispatcher.push.webhook_signature import key as key_of
from tests.attack.table import Row
from tests.attack.target import Target
from tests.unit.api_kit import Client

ANSWERS = ("ack", "nack", "extend")
SIGNED_AT_S = 1_000_000


def run(target: Target, seed: int = 1) -> list[Row]:
    return [
        _receipts(target, random.Random(seed)),
        _signatures(target, random.Random(seed)),
        _urls(target, random.Random(seed)),
    ]


def _receipts(target: Target, rng: random.Random) -> Row:
    row = target.row(
        "forged receipts over HTTP: made up, flipped, of a wrong key, of another caller"
    )
    call = Client(target.http, target.tokens["all"])
    with target.watched(row):
        put = call.now("POST", "/v1/queues/odd/tasks", {"name": "prey"})
        asked = {"wait_s": 20, "visibility_s": 600}
        (prey,) = call.now("POST", "/v1/queues/odd/receive", asked).json["tasks"]
        good = prey["receipt"]
        raw = base64.urlsafe_b64decode(good + "=" * (-len(good) % 4))
        made = msgspec.msgpack.decode(raw[16:], type=Receipt)
        forged = [
            good[:-1],
            good + "A",
            good + "=",
            good.swapcase(),
            good[::-1],
            "\0",
            "é",
            "a" * 1_024,
        ]
        forged += [seal(rng.randbytes(32), made) for _ in range(20)]
        forged += [rng.randbytes(rng.randrange(1, 200)).hex() for _ in range(40)]
        for _ in range(120):
            flipped = bytearray(raw)
            flipped[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            forged.append(base64.urlsafe_b64encode(flipped).rstrip(b"=").decode())
        for number, text in enumerate(forged):
            path = f"/v1/{ANSWERS[number % 3]}"
            status = call.now("POST", path, {"receipt": text}).status
            row.add(
                str(status), wrong=None if status in (400, 404, 409) else f"{text[:80]}: {status}"
            )
        for name in ("narrow", "view", "enqueue", "operate"):
            other = Client(target.http, target.tokens[name])
            for path in ANSWERS:
                status = other.now("POST", f"/v1/{path}", {"receipt": good}).status
                row.add(str(status), wrong=None if status in (403, 404) else f"of {name}: {status}")
        once = call.now("POST", "/v1/ack", {"receipt": good}).status
        twice = call.now("POST", "/v1/ack", {"receipt": good}).status
        if (put.status, once, twice) != (201, 204, 409):
            row.wrong.append(f"the true receipt: {put.status}, {once}, and again {twice}")
    return row


def _urls(target: Target, rng: random.Random) -> Row:
    """Signed URLs: after ten wrong ones of an address the others are answered 429, unlooked at."""
    row = target.row(
        "forged signed URLs: flipped, moved to another queue or name, of another token"
    )
    call = Client(target.http)
    good = sign_url("http://a", target.tokens["narrow"], "other", "prey", once=True)
    path, _, query = good.removeprefix("http://a").partition("?")
    fields = dict(parse_qsl(query))
    tries = [(path.replace("other", "honest"), fields), (f"{path}/../put", fields)]
    tries += [(path, {**fields, name: text}) for name in fields for text in ("", "0", "all", "\0")]
    tries += [(path, {k: v for k, v in fields.items() if k != name}) for name in fields]
    for _ in range(60):
        flipped = list(fields["signature"])
        flipped[rng.randrange(64)] = rng.choice("ghxyz-_ ")
        tries.append((path, {**fields, "signature": "".join(flipped)}))
    with target.watched(row):
        for where, given in tries:
            status = call.now("POST", f"{where}?{urlencode(given)}", {}).status
            fine = status in (400, 401, 403, 404, 429)
            row.add(str(status), wrong=None if fine else f"{where} {given}: {status}")
        found = [call.now("POST", f"{path}?{query}", {}).status for _ in range(2)]
        if found != [201, 409]:
            row.wrong.append(f"the true URL, and again: {found}")
    return row


def _signatures(target: Target, rng: random.Random) -> Row:
    """By `late.verify`, with which a service checks what a worker pushes to it."""
    row = target.row("forged signatures of webhooks: flipped, moved in time, of another key")
    secret = PREFIX + base64.b64encode(rng.randbytes(32)).decode()
    other = PREFIX + base64.b64encode(rng.randbytes(32)).decode()
    body = b'{"trip": 7}'
    said = sign([key_of(secret)], "t-1", SIGNED_AT_S, body)
    good = {"webhook-id": "t-1", "webhook-timestamp": str(SIGNED_AT_S), "webhook-signature": said}
    tries: list[tuple[dict[str, str], bytes]] = [({}, body), ({**good, "webhook-id": "t-2"}, body)]
    for text in ("", "v1", "v1,", "v2" + said[2:], said + "x", said[:-1], said.lower(),
                 "v1a," + said[3:], sign([key_of(other)], "t-1", SIGNED_AT_S, body), " " * 5_000,
                 "v1,é",
                 "," * 5_000):  # fmt: skip
        tries += [({**good, "webhook-signature": text}, body)]
    for moment in (
        "0",
        "",
        "-1",
        "1e6",
        "\u0661",
        "9" * 12,
        "9" * 5_000,
        str(SIGNED_AT_S + 301),
        "1000000 ",
    ):
        tries.append(({**good, "webhook-timestamp": moment}, body))
    for _ in range(100):
        flipped = bytearray(body)
        flipped[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        tries += [(good, bytes(flipped))]
    for headers, sent in tries:
        try:
            verify(headers, sent, secret, now_s=SIGNED_AT_S)
            row.add("taken", wrong=f"{headers} was taken")
        except BadSignature:
            row.add("refused")
        except Exception as error:
            row.add("error", wrong=f"{str(headers)[:200]}: {type(error).__name__}")
    if verify(good, body, secret, now_s=SIGNED_AT_S) != "t-1":
        row.wrong.append("the true signature was refused")
    try:
        verify(good, body, secret, now_s=time.time())
        row.wrong.append("a request of long ago was taken")
    except BadSignature:
        pass
    return row
