"""What bad input gets, row by row and interface by interface: which test says so.

A cell is the name of a test, or why there is none. A row without a cell for each interface, and a
test that is no longer there, fail. The tests at the end are those that the table found missing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

import late
from late.api.pull.receipts import UnknownReceipt
from late.handler.classify import DONE
from late.v1 import queue_pb2
from tests.unit.api_kit import served
from tests.unit.cli_kit import Cli, cli  # noqa: F401
from tests.unit.dispatcher_kit import attempt
from tests.unit.test_grpc_api import Talk, new, stub

TESTS = Path(__file__).resolve().parents[1]
PYTHON = "unit/test_bad_input.py::test_row"
HTTP = "unit/test_api_bad_input.py::test_a_bad_put"
GRPC = "unit/test_grpc_api.py::test_a_bad_enqueue"
CLI = "unit/test_cli_tasks.py::test_enqueue_refuses_bad_input_and_writes_nothing"
SQL = "integration/test_sql_contract.py::test_bad_input_is_refused"
WORKER = "unit/test_bad_input.py::test_worker_row"
HERE = "unit/test_bad_input_table.py::"
NO_RECEIPT = "- takes no receipts"
NO_POLICY = "- takes no policy: the application declares it"
NO_CRON = "- takes no rule: the application declares it"
ONE = "- takes one task at a time"
PRODUCER = "- a producer's matter"
EXECUTED = "- a matter of whoever executes"

INTERFACES = ("python", "http", "grpc", "cli", "sql", "worker")
TABLE: dict[str, tuple[str, ...]] = {
    "payload above the hard limit": (
        PYTHON, HTTP, GRPC, HERE + "test_cli_refuses", SQL, WORKER,
    ),
    "not JSON, depth bomb, NaN, NUL, surrogate": (
        PYTHON, HTTP, GRPC, CLI,
        "integration/test_sql_contract.py::test_arguments_that_no_handler_could_read",
        WORKER,
    ),
    "unknown handler": (
        PYTHON,
        "unit/test_http.py::test_registered_tasks_are_checked_by_their_signature",
        GRPC,
        "unit/test_cli_tasks.py::test_enqueue_by_an_app_checks_against_it",
        "- knows no handlers: the worker parks it",
        "unit/test_core.py::test_an_unknown_task_waits_for_its_handler_and_dies_after_a_day",
    ),
    "bad signature, unknown key id": (
        PRODUCER,
        "unit/test_api_bad_input.py::test_receipts_that_are_not_good",
        "unit/test_grpc_api.py::test_every_answer_and_what_becomes_of_receipts",
        NO_RECEIPT, NO_RECEIPT, WORKER,
    ),
    "due time in the past": (
        "unit/test_bad_input.py::test_row_eta_in_the_past_runs_now",
        "unit/test_api_bad_input.py::test_an_eta_in_the_past_runs_now",
        HERE + "test_grpc_takes_a_due_time_in_the_past",
        HERE + "test_cli_takes_a_due_time_in_the_past",
        "integration/test_sql_contract.py::test_it_runs_with_the_transaction_and_not_without_it",
        "- is due",
    ),
    "due time beyond 366 days, NaN, year 9999, naive": (
        PYTHON, HTTP, GRPC, CLI, SQL,
        "unit/test_core.py::test_a_row_that_cannot_be_is_a_dead_letter_and_hurts_nobody",
    ),
    "attempts and backoff out of bounds": (
        PYTHON, NO_POLICY, NO_POLICY, NO_POLICY, NO_POLICY,
        "- its policy is the application's, checked when it is declared",
    ),
    "cron rule that is none, never fires, or fires too often": (
        PYTHON, NO_CRON, NO_CRON, NO_CRON, NO_CRON,
        "unit/test_schedules.py::test_a_rule_broken_by_hand_never_fires_again",
    ),
    "names outside the pattern, reserved names": (
        PYTHON, HTTP, GRPC, CLI, SQL,
        "unit/test_bad_input.py::test_worker_row_names_outside_the_pattern",
    ),
    "batch above 1,000 tasks or 8 MiB": (
        PYTHON,
        "unit/test_api_bad_input.py::test_bad_batches",
        "unit/test_grpc_api.py::test_batches_and_messages_have_bounds",
        ONE, ONE, PRODUCER,
    ),
    "receipt that is forged, foreign or stale": (
        NO_RECEIPT,
        "unit/test_api_bad_input.py::test_receipts_that_are_stale",
        HERE + "test_grpc_refuses_receipts_of_foreign_queues",
        NO_RECEIPT, NO_RECEIPT, NO_RECEIPT,
    ),
    "the same unique key, with the same body and another": (
        "integration/test_outbox_transactions.py::test_a_repeat_of_a_unique_task_returns_the_first_id",
        "unit/test_http.py::test_a_repeat_gets_the_first_id_and_another_body_a_conflict",
        "unit/test_grpc_api.py::test_a_repeat_and_a_conflict",
        "unit/test_cli_tasks.py::test_enqueue_with_every_option_and_only_a_url",
        "integration/test_sql_contract.py::test_a_unique_key",
        PRODUCER,
    ),
    "queue that is closed, or over its backlog": (
        "unit/test_bad_input.py::test_row_backlog_over_quota",
        "unit/test_api_bad_input.py::test_a_full_queue_refuses",
        HERE + "test_grpc_says_when_to_come_back_to_a_full_queue",
        HERE + "test_cli_asks_the_knobs",
        "integration/test_sql_contract.py::test_a_closed_queue_and_a_full_one_take_nothing",
        PRODUCER,
    ),
    "target that redirects, answers without end or slowly": (
        EXECUTED, EXECUTED, EXECUTED, EXECUTED, EXECUTED,
        "integration/test_http_push.py::test_a_redirect_is_not_followed_wherever_it_leads",
    ),
    "handler that raises 10 MB, no UTF-8, a secret": (
        EXECUTED, EXECUTED, EXECUTED, EXECUTED, EXECUTED,
        "unit/test_dispatcher_classify.py::test_a_huge_message_is_cut_to_four_kibibytes",
    ),
    "row that was tampered with": (
        EXECUTED, EXECUTED, EXECUTED, EXECUTED,
        "integration/test_roles.py::test_a_forged_position_is_lost_where_it_is_not_refused",
        "integration/test_sqlite_store.py::test_a_forged_journal_row_stops_its_own_shard_only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_every_cell_has_its_test_or_its_reason(row: str) -> None:
    cells = dict(zip(INTERFACES, TABLE[row], strict=True))
    for interface, cell in cells.items():
        if cell.startswith("- "):
            continue
        file, _, name = cell.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text(), (row, interface, cell)


# --- the command line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ('{"a":"' + "x" * 1_048_577 + '"}', "the limit is 1048576"),
        ('{"a":' + "[" * 70 + "]" * 70 + "}", "64 levels"),
        ('{"a":"\\u0000"}', "NUL"),
        ('{"a":123456789012345678901234567890}', "64 bits"),
    ],
    ids=["large", "deep", "nul", "long"],
)
def test_cli_refuses(cli: Cli, args: str, words: str) -> None:  # noqa: F811
    told = cli.refused("enqueue", "charge", "--args", args)
    assert words in told
    assert len(told) < 400
    assert cli.fine("status", "--json").json["queues"] == []


def test_cli_takes_a_due_time_in_the_past(cli: Cli) -> None:  # noqa: F811
    cli.fine("enqueue", "charge", "--at", "2001-01-01T00:00:00Z")
    assert cli.fine("status", "--json").json["queues"][0]["depth"]["n"] == 1


def test_cli_asks_the_knobs(cli: Cli) -> None:  # noqa: F811
    cli.fine("queue", "set", "mail", "closed=on")
    assert "closed" in cli.refused("enqueue", "charge", "--queue", "mail", code=1)
    cli.fine("enqueue", "charge", "--queue", "other")
    cli.fine("queue", "set", "mail", "closed=default", "max_backlog=1")
    cli.fine("enqueue", "charge", "--queue", "mail")
    assert "holds 1 tasks" in cli.refused("enqueue", "charge", "--queue", "mail", code=1)


# --- gRPC


async def test_grpc_takes_a_due_time_in_the_past(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        tasks = [new(at=Timestamp(seconds=1)), new(delay=Duration(seconds=-5))]
        await queue.Enqueue(queue_pb2.EnqueueRequest(tasks=tasks))
        stats = await queue.Stats(queue_pb2.StatsRequest(queues=["payments"]))
        assert stats.queues[0].ready == 2


async def test_grpc_refuses_receipts_of_foreign_queues(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it, stub(it) as queue:
        owner = it.token("payer", "consume", queues=("pay*",))
        stranger = it.token("stranger", "consume", queues=("mail",))
        await it.service.access.load()
        talk = Talk(queue, metadata=(("authorization", f"Bearer {owner}"),))
        await talk.begin()
        await it.rig.room()
        it.rig.pool.submit([attempt()])
        (delivery,) = (await talk.hear("deliveries")).deliveries
        other = Talk(queue, metadata=(("authorization", f"Bearer {stranger}"),))
        await other.say(subscribe=queue_pb2.Subscribe(queues=["mail"]))
        async with asyncio.timeout(120):
            assert (await other.call.code()).name == "NOT_FOUND"  # nobody pulls it here
        caller = it.service.access.admit(f"Bearer {stranger}")
        with pytest.raises(UnknownReceipt, match=r"^unknown receipt$"):
            await it.service.answer(caller, delivery.receipt, DONE)
        assert it.rig.outcomes == []
        await talk.say(ack=queue_pb2.Ack(receipts=[delivery.receipt, delivery.receipt + "A"]))
        results = (await talk.hear("receipts")).results
        words = [queue_pb2.ReceiptResult.Status.Name(each.status) for each in results]
        assert words == ["ACCEPTED", "UNKNOWN"]


async def test_grpc_says_when_to_come_back_to_a_full_queue(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db", max_backlog={"payments": 1})
    async with served(tmp_path, app=app) as it, stub(it) as queue:
        asked = queue_pb2.EnqueueRequest(tasks=[new()])
        await queue.Enqueue(asked)
        await queue.Stats(queue_pb2.StatsRequest())  # a look publishes the depth
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await queue.Enqueue(asked)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata())["retry-after"] == "5"
