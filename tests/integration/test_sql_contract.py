"""Producers without this library: the functions of docs/sql.md on PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest
import xxhash

import late
from late.model.ids import made_at_us, shard_of
from late.outbox import connect
from late.payload import values as payload
from late.testing import drain
from tests.servers import drop_database, migrated_database, postgres_url


@pytest.fixture(scope="module")
def module_url() -> Iterator[str]:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made
    drop_database(admin, made)


@pytest.fixture
def sql(module_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(module_url.replace("+psycopg", "")) as connection:
        yield connection
        connection.rollback()


def one(sql: psycopg.Connection[Any], statement: str, *values: Any) -> Any:
    row = sql.execute(statement, values).fetchone()
    assert row is not None
    return row[0] if len(row) == 1 else row


def test_an_ordering_key_has_the_same_shard_for_every_producer(
    sql: psycopg.Connection[Any],
) -> None:
    rng = random.Random(7)
    keys = [
        "".join(rng.choices("abcXYZ019._:-", k=length)) for length in range(1, 129) for _ in "123"
    ]
    found = sql.execute(
        "select k, late_xxh3(k), late_shard(k, 8) from unnest(%s::text[]) k", (keys,)
    )
    for key, digest, shard in found:
        expected = xxhash.xxh3_64_intdigest(key.encode())
        assert digest % 2**64 == expected, key
        assert shard == expected % 8
    app = late.App("postgresql://unused/unused", shards=8)
    assert one(sql, "select late_shard('customer:42', 8)") == app.shard_of("customer:42")


def test_ids_are_made_as_the_library_makes_them(sql: psycopg.Connection[Any]) -> None:
    for shard in (0, 7, 4095):
        task_id = str(one(sql, "select late_task_id(%s)", shard))
        assert shard_of(task_id) == shard
        now_us = one(sql, "select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
        assert abs(now_us - made_at_us(task_id)) < 60_000_000
    assert len({one(sql, "select late_task_id(1)") for _ in range(100)}) == 100


def test_a_task_of_sql_runs_with_all_that_was_asked(sql: psycopg.Connection[Any]) -> None:
    task_id = one(
        sql,
        """select late_enqueue('charge', '{"trip_id": 7, "note": "é"}', queue => 'payments',
             delay => '90 seconds', expires => '1 hour', priority => -5,
             ordering_key => 'customer:42', headers => '{"trace": "abc"}')""",
    )
    found = one(
        sql,
        "select queue, name, convert_from(payload, 'UTF8')::jsonb, headers::jsonb, options::jsonb,"
        " shard_id from late_task where task_id = %s",
        task_id,
    )
    own = int(one(sql, "select xid::text from late_task where task_id = %s", task_id))
    assert found[4].pop("committed_below") > own
    assert found == (
        "payments",
        "charge",
        {"trip_id": 7, "note": "é"},
        {"trace": "abc"},
        {
            "delay_us": 90_000_000,
            "expires_in_us": 3_600_000_000,
            "priority": -5,
            "ordering_key": "customer:42",
        },
        xxhash.xxh3_64_intdigest(b"customer:42") % 8,
    )


def test_it_runs_with_the_transaction_and_not_without_it() -> None:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    url = migrated_database(admin)
    app, ran = late.App(url), []

    @app.task
    def greet(name: str, times: int = 1) -> None:
        ran.append((name, times))

    with connect(url) as tx:
        tx.execute("""select late_enqueue('greet', '{"name": "Ada", "times": 2}')""")
        tx.execute("""select late_enqueue('greet', '{"name": "Bob"}', at => now() - interval '1 h')
        """)
        tx.execute("""select late_enqueue('greet', '{"name": "Eve"}', delay => '-1 h')""")
        tx.execute("savepoint s")
        tx.execute("""select late_enqueue('greet', '{"name": "nobody"}')""")
        tx.execute("rollback to savepoint s")
    assert drain(app) == {"done": 3}
    assert sorted(ran) == [("Ada", 2), ("Bob", 1), ("Eve", 1)]
    drop_database(admin, url)


def test_a_unique_key(sql: psycopg.Connection[Any]) -> None:
    ask = (
        "select late_enqueue('charge', %s, unique_key => 'k', unique_for => %s, on_conflict => %s)"
    )
    first = one(sql, ask, '{"a": 1, "b": 2}', None, "existing")
    assert one(sql, ask, '{"b": 2, "a": 1}', None, "existing") == first
    for args, mode in (('{"a": 2}', "existing"), ('{"a": 1, "b": 2}', "reject")):
        refused = pytest.raises(psycopg.errors.UniqueViolation, match=f"held by task {first}")
        with refused, sql.transaction():
            sql.execute(ask, (args, None, mode))
    # The library and SQL share the keys, not the digests.
    app = late.App("postgresql://unused/unused")

    @app.task
    def charge(a: int) -> None: ...

    assert one(sql, "select count(*) from late_task where name = 'charge'") == 1
    with pytest.raises(late.KeyConflict):
        charge.options(unique_key="k").enqueue(sql, 1)
    ours = charge.options(unique_key="ours").enqueue(sql, 1)
    assert str(one(sql, "select late_enqueue('charge', unique_key => 'ours')")) == ours
    sql.execute("update late_unique set expires_at_us = 1 where unique_key = 'k'")
    again = one(sql, ask, '{"a": 3}', "1 hour", "existing")
    assert again != first
    until, made = one(
        sql, "select expires_at_us, created_at_us from late_unique where unique_key = 'k'"
    )
    assert -until - made == 3_600_000_000


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("''", "name must match"),
        ("'a b'", "name must match"),
        ("'late.cancel'", "reserved"),
        ("'n', queue => 'late.control'", "reserved"),
        ("'n', '[1]'", "args must be a JSON object"),
        ("'n', null", "args must be a JSON object"),
        ("'n', jsonb_build_object('a', repeat('x', 1048576))", "the limit is 1048576"),
        ("'n', queue => 'a b'", "queue must match"),
        ("'n', queue => null", "queue must match"),
        ("'n', ordering_key => ''", "ordering_key must match"),
        ("'n', ordering_key => repeat('k', 129)", "ordering_key must match"),
        ("'n', unique_key => E'a\\nb'", "unique_key must match"),
        ("'n', delay => '367 days'", "delay must be 0 to 366 days"),
        ("'n', at => 'infinity'", "at must be at most 366 days"),
        ("'n', at => '-infinity'", "at must be at most 366 days"),
        ("'n', at => '9999-01-01'", "at must be at most 366 days"),
        ("'n', at => now(), delay => '1 s'", "not both"),
        ("'n', expires => '0 s'", "never run"),
        ("'n', delay => '2 s', expires => '1 s'", "never run"),
        ("'n', priority => 101", "priority"),
        ("'n', priority => null", "priority"),
        ("'n', headers => '[]'", "headers"),
        ("'n', headers => '{\"a\": 1}'", "headers"),
        ("'n', headers => jsonb_build_object('a', repeat('x', 9000))", "headers"),
        ("'n', headers => '{\"\": \"a\"}'", "headers"),
        ("'n', unique_for => '1 h'", "for a unique_key"),
        ("'n', unique_key => 'k', unique_for => '0 s'", "unique_for must be above 0"),
        ("'n', unique_key => 'k', on_conflict => 'ignore'", "on_conflict"),
        ("'n', unique_key => 'k', on_conflict => 'replace'", "on_conflict is existing or reject"),
        ("'n', lane => 'nowhere'", "there is no lane"),
    ],
)
def test_bad_input_is_refused(sql: psycopg.Connection[Any], asked: str, says: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=says):
        sql.execute(f"select late_enqueue({asked})")


@pytest.mark.parametrize("args", ['{"a": NaN}', r'{"a": "\u0000"}', r'{"a": "\ud800"}', "{", "x"])
def test_what_is_no_json_is_no_jsonb(sql: psycopg.Connection[Any], args: str) -> None:
    with pytest.raises(psycopg.DataError):
        sql.execute("select late_enqueue('n', %s::jsonb)", (args,))


DEEPEST = '{"a":' * 64 + "1" + "}" * 64


@pytest.mark.parametrize(
    ("args", "fits"),
    [
        (DEEPEST, True),
        ('{"a":' + DEEPEST + "}", False),
        ('{"a":' + "[" * 63 + "]" * 63 + "}", True),
        ('{"a":' + "[" * 64 + "]" * 64 + "}", False),
        ('{"a":"' + "[" * 100 + ":" * 20_000 + '1234567890123456789012345"}', True),
        ('{"a":[' + ",".join(["[]"] * 500) + "]}", True),
        ("{" + ",".join(f'"{n}":1' for n in range(10_000)) + "}", True),
        ("{" + ",".join(f'"{n}":1' for n in range(10_001)) + "}", False),
        ('{"a":[-9223372036854775808,18446744073709551615,0.1234567890123456789012345]}', True),
        ('{"a":-9223372036854775809}', False),
        ('{"a":[{"b":18446744073709551616}]}', False),
        ('{"a":1e30}', False),
        ('{"a":1.5e300}', False),
    ],
)
def test_arguments_that_no_handler_could_read(
    sql: psycopg.Connection[Any], args: str, fits: bool
) -> None:
    """What SQL takes is what a worker decodes, and the other way round."""
    if not fits:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="64 levels"):
            sql.execute("select late_enqueue('n', %s::jsonb)", (args,))
        return
    task_id = one(sql, "select late_enqueue('n', %s::jsonb)", args)
    stored = one(sql, "select payload from late_task where task_id = %s", task_id)
    assert payload.unpack(bytes(stored), msgspec.json.decode) == msgspec.json.decode(args)


def test_a_closed_queue_and_a_full_one_take_nothing(sql: psycopg.Connection[Any]) -> None:
    """As the other producers: by the rows of `late_full`, which count until their time."""

    def full(name: str, held: int, bound: int, for_s: int = 10) -> None:
        sql.execute("delete from late_full")
        until = f"(extract(epoch from clock_timestamp()) * 1000000)::bigint + {for_s} * 1000000"
        sql.execute(f"insert into late_full values (%s, %s, %s, {until})", (name, held, bound))

    def put(queue: str = "mail", headers: str | None = None) -> str:
        try:
            with sql.transaction():
                sql.execute("select late_enqueue('send', queue => %s, headers => %s::jsonb)",
                            (queue, headers))  # fmt: skip
        except psycopg.errors.ConfigurationLimitExceeded as error:
            return str(error.diag.message_primary)
        return ""

    key = '{"limit_key": "shop-7"}'
    assert put() == put(headers=key) == ""
    full("mail", 0, 0)
    assert put() == "late: queue mail is closed: it takes no new tasks"
    assert put(headers=key) == "late: queue mail is closed: it takes no new tasks"
    assert put("other") == ""
    full("mail", 10, 10)
    assert put() == "late: queue mail holds 10 tasks, its bound is 10"
    full("mail", 10, 10, for_s=-1)
    assert put() == "", "that was long ago"
    full("mail shop-7", 3, 2)
    assert put() == put(headers='{"limit_key": "shop-8"}') == put("other", key) == ""
    assert put(headers=key) == "late: key shop-7 of queue mail holds 3 tasks, its bound is 2"


def test_the_limit_key_chooses_the_shard(sql: psycopg.Connection[Any]) -> None:
    """By the hash of all other producers."""
    app = late.App("postgresql://unused/unused", shards=8)
    for number in range(20):
        headers = f'{{"limit_key": "shop-{number}"}}'
        task_id = one(sql, "select late_enqueue('send', headers => %s::jsonb)", headers)
        assert shard_of(str(task_id)) == app.shard_of(f"shop-{number}")
    with sql.transaction(force_rollback=True):
        sql.execute(
            "select late_enqueue('send', headers => '{\"limit_key\": \"a\"}', ordering_key => 'a')"
        )
    for refused in ("headers => '{\"limit_key\": \"a b\"}'",
                    "headers => '{\"limit_key\": \"a\"}', ordering_key => 'b'"):  # fmt: skip
        refusal = pytest.raises(psycopg.errors.InvalidParameterValue, match="limit_key")
        with refusal, sql.transaction():
            sql.execute(f"select late_enqueue('send', {refused})")
