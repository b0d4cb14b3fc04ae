"""The class of a caller's transaction, as Spanner sees it on the wire."""

from __future__ import annotations

from typing import Any

from google.cloud import spanner

import late
from late.outbox import connect
from late.store.spanner import client as spanner_client
from tests.integration import test_spanner_client as kit
from tests.integration.test_spanner_client import PRIORITY, GrpcProxy, insert_trip_2

upstream, proxy, url = kit.upstream, kit.proxy, kit.url


def test_a_callers_background_transaction_has_low_priority_in_each_request(
    url: str, proxy: GrpcProxy
) -> None:
    place = spanner_client.place_of(url)
    client: Any = spanner.Client(project=place.project, disable_builtin_metrics=True)
    theirs = client.instance(place.instance).database(place.database)
    late.watch(theirs, "shop")
    # An app of its own: its first task asks once whether the schema has `late_full`.
    app = late.App("sqlite:///unused.db", shards=4)

    @app.task
    def greet(name: str) -> None: ...

    def work(tx: Any) -> None:
        list(tx.execute_sql("select id from trip"))
        list(tx.read("trip", ["id"], spanner.KeySet(all_=True)))
        tx.execute_update("insert into trip (id) values (1)")
        greet.enqueue(tx, "Ada")

    # Of a service's own client, and of a connection of `late`.
    with late.tag("nightly", background=True):
        theirs.run_in_transaction(work)
        with connect(url) as tx:
            list(tx.execute_sql("select id from trip"))
            greet.enqueue(tx, "Ada")
    methods = ("ExecuteStreamingSql", "StreamingRead", "ExecuteSql", "Commit")
    requests = [request for method in methods for request in proxy.calls(method)]
    assert [len(proxy.calls(method)) for method in methods] == [3, 1, 1, 2]
    for request in requests:
        assert request.request_options.priority == PRIORITY.PRIORITY_LOW
        assert request.request_options.transaction_tag == "late-background:nightly"
    proxy.heard.clear()
    theirs.run_in_transaction(insert_trip_2)
    [commit] = proxy.calls("Commit")
    assert commit.request_options.priority == PRIORITY.PRIORITY_UNSPECIFIED
