"""What the command line can, the API can over HTTP and gRPC: each command has an operation, or a
reason why not."""

from __future__ import annotations

import pytest

from late.api.grpc.operator_values import rpc_of
from late.api.http.openapi import document
from late.api.operator.table import OPERATIONS
from late.cli.main import app
from late.v1 import operator_pb2, queue_pb2
from scripts import http_doc
from tests.unit.test_cli_basics import COMMANDS

OWN_ROUTES = {"enqueue": "POST /v1/queues/{queue}/tasks", "metrics": "GET /metrics"}
"""Commands whose route has another form than an operation has."""
OWN_METHODS = {"enqueue": "late.v1.Queue.Enqueue"}
NO_METHODS = {"metrics": "what reads metrics asks over HTTP"}
FILES = "it reads or writes files of this machine"
PROCESS = "it is a process of its own"
OWNER = "it takes the rights of the tables' owner, which no server has"
ACCESS = "who may come in is decided with the rights of the database, and not by who is in"
NOT_SERVED = {
    "migrate": OWNER,
    "rebase": "a server does not start on a copy, and all workers are stopped for it",
    "keys rotate": OWNER,
    "keys drop": "it cannot be undone, and takes the rights of the tables' owner",
    "keys rewrap": "it takes the codec of an app, with its keys",
    "url sign": "it signs with a token that only the caller has",
    "help": "it prints a text and asks no database",
    "roles sql": "it prints a text and asks no database",
    "token create": ACCESS,
    "token list": ACCESS,
    "token revoke": ACCESS,
    "worker": PROCESS,
    "serve": PROCESS,
    "demo": PROCESS,
    "bench": PROCESS,
    "autoscale run": PROCESS,
    "autoscale workers": PROCESS,
    "autoscale simulate": FILES,
    "top": "it is a screen; GET /v1/status has the same",
    "size": "it computes and asks no database",
    "celery scan": FILES,
    "celery beat": "it reads an app's code, which is on the caller's machine",
    "celery ramp": "the share is a knob of the queue `celery:TASK`; counts are in the journal",
    "check": "it compares the database with an app's code, which is on the caller's machine",
    "doctor": "it examines the machine on which it runs, and its way to the database",
    "verify": "it reads every table in one transaction, for longer than a request may take",
    "config show": "it reads the file, the variables and the flags of the caller's machine",
    "config check": FILES,
    "alerts list": FILES,
    "alerts render": FILES,
    "alerts dashboard": FILES,
    "lake show": FILES,
    "lake export": FILES,
    "close": FILES,
    "report throughput": FILES,
    "report cost": FILES,
    "report impact": FILES,
    "report live": FILES,
    "report capacity": FILES,
}


def test_every_command_is_served_or_says_why_not() -> None:
    served = {command for each in OPERATIONS for command in each.commands}
    # `late knobs` alone lists the knobs; the list of commands has what is below it.
    known = {" ".join(words) for words in COMMANDS} | {"knobs"}
    groups = [served, OWN_ROUTES.keys(), NOT_SERVED.keys()]
    assert known == set().union(*groups)
    assert len(known) == sum(len(group) for group in groups), "a command is in two lists"


def test_the_routes_of_commands_of_another_form_are_there() -> None:
    assert "post" in document()["paths"]["/v1/queues/{queue}/tasks"]
    assert {each.name for each in app.registered_commands} >= OWN_ROUTES.keys()


def test_every_command_that_is_served_is_served_over_both() -> None:
    methods = {
        each.full_name for each in operator_pb2.DESCRIPTOR.services_by_name["Operator"].methods
    }
    methods |= {each.full_name for each in queue_pb2.DESCRIPTOR.services_by_name["Queue"].methods}
    assert {f"late.v1.Operator.{rpc_of(each)}" for each in OPERATIONS} <= methods
    assert set(OWN_METHODS.values()) <= methods
    assert OWN_ROUTES.keys() == OWN_METHODS.keys() | NO_METHODS.keys()


def test_every_operation_is_told_once_and_has_a_rule() -> None:
    names = [each.name for each in OPERATIONS]
    assert len(set(names)) == len(names)
    for each in OPERATIONS:
        assert each.summary.endswith("."), each.name
        assert each.changes is (each.rule.role in ("operate", "admin")) or (
            each.name == "taskResult"  # a result is confidential, as a payload is
        )
        if "{queue}" in each.path:
            assert each.rule.reach == "queue"


def test_the_pages_are_as_the_operations() -> None:
    again = "run: python scripts/http_doc.py"
    assert http_doc.PAGE.read_text() == http_doc.page(http_doc.PAGE.read_text()), again
    assert http_doc.DOCUMENT.read_text() == http_doc.openapi(), again


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: each.name)
def test_the_document_has_every_operation(each: object) -> None:
    operation = next(one for one in OPERATIONS if one is each)
    found = document()["paths"][operation.path][operation.method.lower()]
    in_path = [one["name"] for one in found.get("parameters", []) if one["in"] == "path"]
    assert all(f"{{{name}}}" in operation.path for name in in_path)
    assert len(in_path) == operation.path.count("{")
    assert ("requestBody" in found) is (operation.method not in ("GET", "DELETE"))
