"""KEDA's questions over gRPC, by its own interface, and the signals on every store."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import delete, update

import late
from late.autoscaler.keda import server as module
from late.autoscaler.keda.demand import Signals
from late.autoscaler.keda.server import KEEP_S, KedaServer, SignalsCache
from late.control import Control
from late.errors import ConfigError, StoreUnavailable
from late.outbox import connect
from late.schema.tables import queue
from late.testing import drain
from late.v1 import externalscaler_pb2 as pb
from late.v1 import externalscaler_pb2_grpc as rpc
from tests.integration.control_kit import transaction
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]

ROOT = Path(__file__).resolve().parents[2]
BUSY = Signals(backlog=6000, age_s=60.0, rate=100.0, busy_s=0.32, workers=2, shards=8)


class Fleet:
    def __init__(self) -> None:
        self.seen, self.asked, self.now = BUSY, list[tuple[str, str | None]](), 0.0
        self.error: Exception | None = None

    def read(self, group: str, queue: str | None) -> Signals:
        self.asked.append((group, queue))
        if self.error is not None:
            raise self.error
        return self.seen


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def keda(fleet: Fleet) -> Iterator[Any]:
    server = KedaServer(SignalsCache(fleet.read, lambda: fleet.now), "127.0.0.1", 0)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield rpc.ExternalScalerStub(channel)
    server.stop()


def ref(**metadata: str) -> Any:
    return pb.ScaledObjectRef(name="w", namespace="n", scalerMetadata=metadata)


def test_what_keda_asks_and_is_told(keda: Any, fleet: Fleet) -> None:
    asked = ref(group="mail", queue="out", slots="16", drainSeconds="60", scalerAddress="late:7290")
    (spec,) = keda.GetMetricSpec(asked).metricSpecs
    assert (spec.metricName, spec.targetSizeFloat) == ("late-workers", 1.0)
    request = pb.GetMetricsRequest(scaledObjectRef=asked, metricName=spec.metricName)
    (value,) = keda.GetMetrics(request).metricValues
    assert (value.metricName, value.metricValueFloat) == ("late-workers", 4.0)
    assert keda.IsActive(asked).result
    assert fleet.asked == [("mail", "out")], "the database is asked once within two seconds"
    fleet.now += KEEP_S
    fleet.seen = Signals(0, 0.0, 0.0, 0.0, 2, 8)
    assert not keda.IsActive(asked).result
    assert len(fleet.asked) == 2


def test_the_age_of_the_oldest_task_is_a_metric_where_it_is_asked_for(
    keda: Any, fleet: Fleet
) -> None:
    asked = ref(oldestAgeSeconds="30")
    specs = {s.metricName: s.targetSizeFloat for s in keda.GetMetricSpec(asked).metricSpecs}
    assert specs == {"late-workers": 1.0, "late-oldest-age-s": 30.0}

    def value(name: str) -> tuple[str, float]:
        request = pb.GetMetricsRequest(scaledObjectRef=asked, metricName=name)
        (found,) = keda.GetMetrics(request).metricValues
        return found.metricName, found.metricValueFloat

    assert value("late-workers") == ("late-workers", 4.0)
    assert value("late-oldest-age-s") == ("late-oldest-age-s", 60.0), "60 / 30: two workers"
    assert value("s0-late-oldest-age-s")[1] == 60.0, "as KEDA names it among several triggers"
    fleet.now += KEEP_S
    fleet.seen = Signals(10, 86_400.0, 1.0, 1.0, 2, 8)
    assert value("late-oldest-age-s")[1] == 240.0, "no more workers than shards"


def test_the_stream_begins_with_the_present_state(keda: Any) -> None:
    stream = keda.StreamIsActive(ref())
    assert next(stream).result
    stream.cancel()


def test_a_database_that_is_away_is_an_error_and_no_zero(keda: Any, fleet: Fleet) -> None:
    fleet.error = StoreUnavailable("connection refused")
    with pytest.raises(grpc.RpcError) as error:
        keda.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=ref(), metricName="late-workers"))
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"slot": "3"}, "'slot'"),
        ({"slots": "many"}, "slots = 'many'"),
        ({"slots": "0"}, "slots = '0'"),
        ({"slots": "1.5"}, "slots = '1.5'"),
        ({"slots": "-1"}, "slots = '-1'"),
        ({"drainSeconds": "-1"}, "drainSeconds = '-1'"),
        ({"drainSeconds": "nan"}, "drainSeconds = 'nan'"),
        ({"oldestAgeSeconds": "0"}, "oldestAgeSeconds = '0'"),
        ({"group": "x" * 129}, "group: a name has up to 128"),
    ],
)
def test_wrong_metadata_is_named(keda: Any, metadata: dict[str, str], words: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        keda.GetMetricSpec(ref(**metadata))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.value.details()


def test_fields_that_are_for_keda_are_let_pass(keda: Any) -> None:
    """It hands on all that stands in the trigger, also what is about its connection."""
    asked = ref(scalerAddress="late:7290", enableTLS="true", unsafeSsl="false", group="mail")
    assert len(keda.GetMetricSpec(asked).metricSpecs) == 1
    assert keda.IsActive(asked).result


def test_a_group_that_there_is_not_is_an_error_and_no_zero(keda: Any, fleet: Fleet) -> None:
    fleet.error = ConfigError("no group 'mial'")
    with pytest.raises(grpc.RpcError) as error:
        keda.IsActive(ref(group="mial"))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'mial'" in error.value.details()


def test_a_group_that_there_is_not_is_asked_for_once_within_two_seconds(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 3)
    cache = SignalsCache(fleet.read, lambda: fleet.now)

    def refused(group: str) -> None:
        with pytest.raises(ConfigError, match="no group 'mial'"):
            cache.get(group, None)

    cache.get("mail", None)
    fleet.error = ConfigError("no group 'mial'")
    refused("mial")
    refused("mial")
    assert fleet.asked == [("mail", None), ("mial", None)]
    for n in range(10):
        refused(f"made-up-{n}")
    assert len(cache._refused) == 3, "a name for each call takes no memory for each"
    assert cache.get("mail", None) is BUSY, "and drives no other out"
    fleet.now += KEEP_S
    fleet.error = None
    assert cache.get("mial", None) is BUSY, "it was created meanwhile"
    fleet.error = StoreUnavailable("connection refused")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            cache.get("out", None)
    assert [group for group, _ in fleet.asked[-2:]] == ["out", "out"], "that may be over by now"


def test_signals_of_a_queue_before_and_after_its_work(url: str) -> None:
    app = late.App(url, shards=2)

    @app.task(queue="mail")
    def send(number: int) -> None:
        pass

    with connect(url) as tx:
        app.enqueue_many(tx, [send.call(n) for n in range(5)])
    with Control(url) as control:
        (all_, mail, other) = control.status.signals(
            [("default", None), ("default", "mail"), ("default", "other")]
        )
        assert (all_.backlog, mail.backlog, other.backlog) == (5, 5, 0)
        with pytest.raises(ConfigError, match="no group 'defualt'; there are default"):
            control.status.signals([("default", None), ("defualt", "mail")])
        assert all_.age_s >= 0
        assert all_.rate == 0
        mine = queue.c.name == "mail"
        control.queues.change("queue", "mail", {"paused": True})
        [paused] = control.status.signals([("default", "mail")])
        assert (paused.backlog, paused.helped) == (5, 0)
        # A knob of a later version hides no load, or an autoscaler would take workers away.
        with transaction(url) as connection:
            connection.execute(update(queue).where(mine).values(knobs='{"of a later version":1}'))
        [unread] = control.status.signals([("default", "mail")])
        assert (unread.backlog, unread.helped) == (5, 5)
        with transaction(url) as connection:
            connection.execute(delete(queue).where(mine))
        drain(app)
        (all_, mail, other) = control.status.signals(
            [("default", None), ("default", "mail"), ("default", "other")]
        )
    assert all_.backlog == 0
    assert all_.rate == pytest.approx(mail.rate)
    assert mail.rate == pytest.approx(5 / 60)
    assert mail.busy_s > 0
    assert other.rate == 0


def test_the_command_serves_and_shows(cli: Cli) -> None:
    shown = cli.fine("autoscale", "workers", "--show", "--json").json
    assert (shown["backlog"], shown["wanted"]) == (0, 0)
    assert "wanted" in cli.fine("autoscale", "workers", "--show").out
    queue = cli.fine("autoscale", "workers", "--show", "--queue", "mail", "--json").json
    assert queue["queue"] == "mail"
    assert "'nope'" in cli.refused("autoscale", "workers", "--show", "--group", "nope")
    assert "--tls-cert" in cli.refused("autoscale", "workers", "--host", "0.0.0.0")
    assert "together" in cli.refused("autoscale", "workers", "--tls-ca", "x")
    command = [sys.executable, "-u", "-m", "late.cli", "autoscale", "workers", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            with grpc.insecure_channel(address) as channel:
                assert not rpc.ExternalScalerStub(channel).IsActive(ref()).result
        finally:
            server.send_signal(signal.SIGTERM)
    assert server.returncode == 0
