"""Payloads: what goes in comes out, and a signature fits one task only."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import late
from late.errors import ConfigError, DecodeError, InvalidPayload
from late.model.task import Options, Record, Schedule
from late.payload import codec
from late.payload import values as payload
from late.payload.codec import JSON, MSGPACK, Codec, Encrypted, Plain, Signed, Subject

KEYS = {"k1": b"1" * 32, "k2": b"2" * 32}
SEALS = [Signed, Encrypted]
SUBJECT = Subject("01920000-0000-7001-8000-000000000001", "pay", "money")

plain_app = late.App("sqlite:///x.db")
packed_app = late.App("sqlite:///x.db", codec="msgpack")


@plain_app.task(name="echo")
def echo(value: Any) -> None: ...


@packed_app.task(name="echo")
def packed_echo(value: Any) -> None: ...


def stored(task: late.Task[Any, Any], *args: Any, **asked: Any) -> tuple[Record, Options]:
    """A call as a worker reads it."""
    call = task.options(**asked).call(*args)
    row = task.app.row(call)
    record = Record(
        row.shard_id, 1, row.task_id, row.queue, row.name, row.payload, row.headers, None, 1, 1
    )
    return record, call.settings.options


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner
        ),
    ),
)


@settings(deadline=None)  # machines under load are not what is tested
@given(value=values)
def test_every_value_within_the_limits_survives(value: Any) -> None:
    for task in (echo, packed_echo):
        assert task.decode(*stored(task, value)) == {"value": value}


def test_text_that_looks_like_a_broken_limit_is_fine() -> None:
    for value in (
        "null NaN Infinity",
        "\\u0000",
        "[" * 500 + ":" * 20_000,
        "9" * 40,
        [None] * 100,
        [[1]] * 1000,
    ):
        assert echo.decode(*stored(echo, value)) == {"value": value}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_the_limits_themselves_are_within() -> None:
    # The payload's own object is the first level and `value` the first key.
    for task in (echo, packed_echo):
        for value in (nested(63), dict.fromkeys(map(str, range(9_999)), 1)):
            assert task.decode(*stored(task, value)) == {"value": value}
        for value in (nested(64), dict.fromkeys(map(str, range(10_000)), 1)):
            with pytest.raises(InvalidPayload):
                task.call(value)
    overhead = len(b'{"value":""}')
    echo.call("x" * (payload.PAYLOAD_BYTES_MAX - overhead))
    with pytest.raises(late.PayloadTooLarge, match="1048577 bytes, the limit is 1048576"):
        echo.call("x" * (payload.PAYLOAD_BYTES_MAX - overhead + 1))


def test_a_task_reads_both_formats_whatever_its_own() -> None:
    record, options = stored(packed_echo, 1)
    assert options.codec == "msgpack"
    assert record.payload == b"\x81\xa5value\x01"
    assert echo.decode(record, options) == {"value": 1}
    record, _ = stored(echo, 1)
    assert packed_echo.decode(record, None) == {"value": 1}


@pytest.mark.parametrize("seal", SEALS)
def test_the_seal_round_trips_with_every_key(seal: Any) -> None:
    for key in KEYS:
        sealed = seal(keys=KEYS, current=key).seal(b"{}", SUBJECT)
        assert seal("json", keys=KEYS, current="k1").open(sealed, SUBJECT) == b"{}"
        assert (b"{}" in sealed) == (seal is Signed)
    rotated = seal(keys={"k2": KEYS["k2"]}, current="k2")
    with pytest.raises(DecodeError, match="unknown key 'k1'"):
        rotated.open(seal(keys=KEYS, current="k1").seal(b"{}", SUBJECT), SUBJECT)


@pytest.mark.parametrize(
    ("seal", "stored"),
    [
        (
            Signed,
            "4c5331026b31b20a 91699a82580d979a 1b1da6ae71b7e7ac edcc188b7ff66c44 0cc169adad01 "
            "7b2263656e747322 3a317d ",
        ),
        (
            Encrypted,
            "4c4531026b318255 d489eeb4993f827c a2cc0d6d44afee81 d06110de697cdf51 1f650f5274cb "
            "7bebe67773a6af ",
        ),
    ],
)
def test_what_versions_before_have_sealed_stays_readable(seal: Any, stored: str) -> None:
    for bind in ("read", "write"):
        opens = seal(keys=KEYS, current="k2", bind_options=bind)
        assert opens.open(bytes.fromhex(stored), SUBJECT) == b'{"cents":1}'
    with pytest.raises(DecodeError, match="without the task's options"):
        seal(keys=KEYS, current="k2", bind_options="require").open(bytes.fromhex(stored), SUBJECT)


@pytest.mark.parametrize("field", Subject._fields)
@pytest.mark.parametrize("seal", SEALS)
def test_a_seal_cannot_be_moved_to_another_task(seal: Any, field: str) -> None:
    signed = seal(keys=KEYS, current="k1")
    sealed = signed.seal(b"{}", SUBJECT)
    with pytest.raises(DecodeError) as caught:
        signed.open(sealed, SUBJECT._replace(**{field: "other"}))
    assert caught.value.reason == "bad_signature"


@pytest.mark.parametrize("seal", SEALS)
def test_the_parts_of_the_subject_cannot_flow_into_each_other(seal: Any) -> None:
    signed = seal(keys=KEYS, current="k1")
    sealed = signed.seal(b"{}", Subject("id", "ab", "c"))
    with pytest.raises(DecodeError):
        signed.open(sealed, Subject("id", "a", "bc"))


@settings(deadline=None)  # machines under load are not what is tested
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
@pytest.mark.parametrize("seal", SEALS)
def test_no_bit_of_a_seal_can_be_changed(seal: Any, position: int, bit: int) -> None:
    signed = seal(keys=KEYS, current="k1")
    sealed = bytearray(signed.seal(b'{"amount":1}', SUBJECT))
    sealed[position % len(sealed)] ^= 1 << bit
    with pytest.raises(DecodeError) as caught:
        signed.open(bytes(sealed), SUBJECT)
    assert caught.value.reason == "bad_signature"


def secured(codec_: codec.Codec) -> late.Task[Any, Any]:
    app = late.App("sqlite:///x.db", codec=codec_)

    @app.task(name="echo")
    def echo(value: Any) -> None: ...

    return echo


@pytest.mark.parametrize("inner", ["json", "msgpack"])
@pytest.mark.parametrize("seal", SEALS)
def test_a_sealed_task_end_to_end(seal: Any, inner: payload.Format) -> None:
    task = secured(seal(inner, keys=KEYS, current="k2"))
    record, options = stored(task, [1, "two"])
    assert options.codec == f"{seal.__name__.lower()}+{inner}"
    assert task.decode(record, options) == {"value": [1, "two"]}


@pytest.mark.parametrize("seal", SEALS)
def test_a_required_signature_is_not_got_around(seal: Any) -> None:
    required = secured(seal(keys=KEYS, current="k1"))
    unsigned, _ = stored(echo, 1)
    for options in (None, Options(), Options(codec="json"), Options(codec="msgpack")):
        with pytest.raises(DecodeError) as caught:
            required.decode(unsigned, options)
        assert caught.value.reason == "bad_signature"
    introduced = secured(seal(keys=KEYS, current="k1", require=False))
    assert introduced.decode(unsigned, None) == {"value": 1}
    signed, options = stored(required, 1)
    assert introduced.decode(signed, options) == {"value": 1}
    with pytest.raises(DecodeError) as caught:
        echo.decode(signed, options)
    assert caught.value.reason == "undecodable"


@pytest.mark.parametrize("seal", SEALS)
def test_a_seal_counts_towards_the_size(seal: Any) -> None:
    task = secured(seal(keys=KEYS, current="k1"))
    call = task.call("x" * (payload.PAYLOAD_BYTES_MAX - len(b'{"value":""}')))
    with pytest.raises(late.PayloadTooLarge):
        task.app.row(call)


@pytest.mark.parametrize("seal", SEALS)
def test_a_tick_is_signed_for_its_schedule(seal: Any) -> None:
    app = late.App("sqlite:///x.db", codec=seal(keys=KEYS, current="k1"))

    @app.schedule("0 3 * * *", name="nightly", args={"value": 7})
    @app.task
    def echo(value: int) -> None: ...

    (schedule,) = app.schedules
    assert isinstance(schedule, Schedule)
    tick = Record(1, 1, late.TaskId("any"), "default", "echo", schedule.payload, None, None, 1, 1)
    options = Options(codec=seal(keys=KEYS, current="k1").name, schedule="nightly")
    assert echo.decode(tick, options) == {"value": 7}
    with pytest.raises(DecodeError):
        echo.decode(tick, Options(codec=seal(keys=KEYS, current="k1").name, schedule="other"))
    with pytest.raises(DecodeError):
        echo.decode(tick, Options(codec=seal(keys=KEYS, current="k1").name))


@pytest.mark.parametrize(
    ("keys", "current"),
    [({}, "k1"), ({"k1": b"short"}, "k1"), ({"a b": b"1" * 16}, "a b"), ({"k1": "x" * 16}, "k1")],
)
@pytest.mark.parametrize("seal", SEALS)
def test_a_bad_key_ring_is_refused(seal: Any, keys: Any, current: str) -> None:
    with pytest.raises(ConfigError):
        seal(keys=keys, current=current)


def test_a_key_is_bytes() -> None:
    with pytest.raises(ConfigError, match="key 'k1' must be bytes, it is str"):
        Signed(keys={"k1": "x" * 32}, current="k1")  # type: ignore[dict-item]


def test_a_key_for_encryption_has_32_bytes() -> None:
    with pytest.raises(ConfigError, match="32 bytes, it has 33"):
        Encrypted(keys={"k1": b"1" * 33}, current="k1")


def test_encryption_hides_the_arguments_and_their_digest() -> None:
    task = secured(Encrypted(keys=KEYS, current="k1"))
    call = task.options(unique_key="card").call("4929 1234 5678 9012")
    rows = [task.app.row(call) for _ in range(2)]
    assert not any(b"4929" in row.payload for row in rows)
    assert rows[0].payload[40:] != rows[1].payload[40:]
    # The same request is known again, and not by who may only guess what it was.
    assert rows[0].digest == rows[1].digest != payload.digest(call.name, call.values)
    other = secured(Encrypted(keys=KEYS, current="k2"))
    assert other.app.row(call).digest == rows[0].digest  # the call's own codec sealed it


def test_one_seal_may_hold_another() -> None:
    both: Codec = Signed(Encrypted(keys=KEYS, current="k1"), keys=KEYS, current="k2")
    assert both.name == "signed+encrypted+json"
    assert both.open(both.seal(b"{}", SUBJECT), SUBJECT) == b"{}"


def test_a_short_or_foreign_seal_is_refused_and_not_shown() -> None:
    codec_ = Encrypted(keys=KEYS, current="k1")
    whole = codec_.seal(b'{"secret":1}', SUBJECT)
    for cut in (b"", b"LE1", b"LE1\x02k", whole[:6], whole[:10], whole[:-1], b'{"secret":1}'):
        with pytest.raises(DecodeError) as caught:
            codec_.open(cut, SUBJECT)
        assert caught.value.reason == "bad_signature"
        assert "secret" not in str(caught.value)


def test_the_digest_is_of_name_and_values_and_of_nothing_else() -> None:
    same = [echo.call({"b": {3, 1, 2}, "a": 1}), echo.call({"a": 1, "b": {2, 3, 1}})]
    digests = {payload.digest(call.name, call.values) for call in same}
    assert len(digests) == 1
    assert payload.digest("other", same[0].values) not in digests
    assert payload.digest("echo", echo.call(2).values) not in digests
    task = secured(Signed(keys=KEYS, current="k1"))
    rows = [task.app.row(task.options(unique_key="k").call(1)) for _ in range(2)]
    assert rows[0].payload != rows[1].payload
    assert rows[0].digest == rows[1].digest


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ConfigError, match="'pickle' is neither"):
        late.App("sqlite:///x.db", codec="pickle")  # type: ignore[arg-type]
    assert codec.resolve("json") is JSON
    assert codec.resolve("msgpack") is MSGPACK
    assert codec.resolve(Plain("json")) == JSON


def test_messages_hold_no_payload() -> None:
    app = late.App("sqlite:///x.db")

    @app.task
    def typed(secret: int, when: datetime) -> None: ...

    with pytest.raises(InvalidPayload) as caught:
        typed.call("hunter2", datetime.now(UTC))  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidPayload) as caught:
        echo.call("hunter2 \ud800")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)


def test_encryption_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ConfigError, match=r"late-queue\[crypto\]"):
        Encrypted(keys=KEYS, current="k1")
