"""Resizes through Google's own client: against a server that answers as the service does, and
against the emulator, which refuses to resize."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.api_core import exceptions as api

from late import events
from late.autoscaler.autoscaler import Autoscaler
from late.autoscaler.decide import Observation, State, decide
from late.autoscaler.metrics import google_metrics as monitoring
from late.autoscaler.metrics.file import FileSource
from late.autoscaler.metrics.google_metrics import MonitoringSource
from late.autoscaler.metrics.source import Metrics, MetricsError
from late.autoscaler.policy import Policy
from late.autoscaler.targets import spanner
from late.autoscaler.targets.sizer import ResizeError
from late.autoscaler.targets.spanner import SpannerSizer
from late.control import Control
from late.errors import ConfigError
from tests import servers
from tests.integration.instance_admin import InstanceAdmin
from tests.support import sqlite

SHOP = "projects/p/instances/shop"


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[InstanceAdmin]:
    with InstanceAdmin() as server:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", f"127.0.0.1:{server.port}")
        yield server


def test_nodes_and_processing_units(admin: InstanceAdmin) -> None:
    nodes = SpannerSizer(SHOP, "nodes")
    assert (nodes.name, nodes.size()) == ("shop", 3)
    assert nodes.resize(3, 5).done()
    units = SpannerSizer(SHOP, "processing_units")
    assert units.size() == 5000
    assert units.resize(5000, 2000).done()
    assert nodes.size() == 2
    assert admin.updates == [("node_count", 5), ("processing_units", 2000)]


def test_a_slow_operation_is_asked_for_again(admin: InstanceAdmin) -> None:
    admin.slow = True
    sizer = SpannerSizer(SHOP, "nodes")
    pending = sizer.resize(3, 5)
    assert not pending.done()
    assert sizer.size() == 3
    with pytest.raises(ResizeError, match="FAILED_PRECONDITION: another update"):
        sizer.resize(3, 6)
    admin.slow = False
    assert pending.done()
    assert sizer.size() == 5


def test_an_operation_that_fails_later(admin: InstanceAdmin) -> None:
    admin.slow = True
    pending = SpannerSizer(SHOP, "nodes").resize(3, 5)
    admin.slow, admin.fails_later = False, grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(ResizeError, match="later, by the test"):
        pending.done()


def test_an_instance_that_spanner_sizes_itself_is_not_sized_twice(admin: InstanceAdmin) -> None:
    sizer = SpannerSizer(SHOP, "nodes")
    admin.managed = True
    with pytest.raises(ResizeError, match="own autoscaler"):
        sizer.size()


def test_an_instance_that_is_not_there(admin: InstanceAdmin) -> None:
    with pytest.raises(ResizeError, match="NOT_FOUND"):
        SpannerSizer("projects/p/instances/none", "nodes").size()


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNAVAILABLE,
    ],
)
def test_errors_are_survived_with_one_line_each(
    admin: InstanceAdmin, tmp_path: Path, code: grpc.StatusCode
) -> None:
    # Given a database at 90 % and a service that refuses
    url = sqlite.database(tmp_path / "shop.db")
    said: list[dict[str, Any]] = []
    emitter = events.Emitter()
    emitter.subscribe(lambda _, values: said.append(dict(values)), [events.AUTOSCALER_BLIND])
    time = SimpleNamespace(now=0.0)
    with Control(url) as control:
        (tmp_path / "cpu.csv").write_text(f"at,cpu\n{control.now()},85\n")
        scaler = Autoscaler(
            Policy(min=1, max=9), FileSource(tmp_path / "cpu.csv"), SpannerSizer(SHOP, "nodes"),
            control.autoscalers.journal(), owner="a", monotonic=lambda: time.now, emit=emitter,
        )  # fmt: skip
        admin.code = code
        # When it looks again and again
        for _ in range(3):
            scaler.look()
        # Then it says so once, with the status by its name
        assert len(said) == 1
        assert code.name in said[0]["error"]
        # And when the service is itself again, so is it
        admin.code, time.now = None, 40.0
        scaler.look()
        assert admin.nodes == 4
        assert control.autoscalers.decisions()[0].result == "applied"


def test_the_emulator_reads_and_refuses_to_resize(monkeypatch: pytest.MonkeyPatch) -> None:
    if servers.spanner_host() is None:
        pytest.skip("no Spanner emulator for the tests")
    client = spanner.client()
    name = f"projects/p-autoscale/instances/t{os.getpid()}"
    from google.cloud.spanner_admin_instance_v1 import types

    client.create_instance(
        parent="projects/p-autoscale",
        instance_id=name.rpartition("/")[2],
        instance=types.Instance(
            name=name, config="projects/p-autoscale/instanceConfigs/emulator-config",
            display_name="autoscale", node_count=1,
        ),
    ).result(30)  # fmt: skip
    try:
        sizer = SpannerSizer(name, "nodes")
        assert sizer.size() == 1
        with pytest.raises(ResizeError, match="UNIMPLEMENTED"):
            sizer.resize(1, 2)
        with pytest.raises(ResizeError, match="NOT_FOUND"):
            SpannerSizer("projects/p-autoscale/instances/none", "nodes").size()
    finally:
        client.delete_instance(name=name)


def test_a_name_that_is_no_instance() -> None:
    with pytest.raises(ConfigError, match="shop"):
        SpannerSizer("shop", "nodes", object())


class FakeMonitoring:
    """What `list_time_series` gives for each metric: {time in s: value}."""

    def __init__(self, series: dict[str, dict[int, float]]) -> None:
        self.series, self.error = series, None
        self.filters: list[str] = []

    def list_time_series(self, request: dict[str, Any], timeout: float) -> list[Any]:
        if self.error is not None:
            raise self.error
        # Google's own type refuses a field that is not there.
        monitoring.monitoring_v3.ListTimeSeriesRequest(request)
        self.filters.append(request["filter"])
        since = request["interval"]["start_time"]["seconds"]
        until = request["interval"]["end_time"]["seconds"]
        metric = request["filter"].split('"')[1]
        points = [
            SimpleNamespace(
                interval=SimpleNamespace(end_time=datetime.fromtimestamp(at, UTC)),
                value=SimpleNamespace(double_value=value, int64_value=0),
            )
            for at, value in self.series.get(metric, {}).items()
            if since <= at <= until
        ]
        return [SimpleNamespace(points=points)] if points else []


def test_the_newest_reading_with_the_size_of_its_time() -> None:
    fake = FakeMonitoring(
        {
            monitoring.CPU: {1000: 0.5, 1060: 0.72},
            monitoring.CPU_24H: {1060: 0.4},
            monitoring.STORAGE: {1000: 5e12},
            monitoring.SIZES["nodes"]: {1000: 3.0, 1060: 4.0, 1120: 9.0},
        }
    )
    source = MonitoringSource(SHOP, "nodes", fake)
    assert source.read(1_200_000_000) == Metrics(
        1_060_000_000, pytest.approx(72.0), 4, pytest.approx(40.0), 5 * 10**12
    )
    assert f'"{monitoring.CPU_TOTAL}"' not in str(fake.filters), "nobody asked for it"
    fake.series[monitoring.CPU_TOTAL] = {1000: 0.6, 1060: 0.9, 1120: 0.3}
    both = MonitoringSource(SHOP, "nodes", fake, total=True).read(1_200_000_000)
    assert both.cpu_total == pytest.approx(90.0)
    assert 'priority = "high"' in fake.filters[0]
    assert 'instance_id = "shop"' in fake.filters[0]
    assert source.past(0, 1_200_000_000) == [(1_000_000_000, 1.5), (1_060_000_000, 2.88)]


@pytest.mark.parametrize(
    ("stops", "since_s", "words"),
    [
        (monitoring.CPU_TOTAL, 660, "metrics are 660 s old"),
        (monitoring.CPU, 660, "metrics are 660 s old"),
        (monitoring.CPU_TOTAL, 1200, "no metrics of the total CPU"),
        (monitoring.CPU, 1200, "no metrics"),
    ],
)
def test_one_series_that_stops_holds_the_size(stops: str, since_s: int, words: str) -> None:
    now_s = 100_000
    series = {metric: dict.fromkeys(range(now_s - 3000, now_s + 1, 60), 0.9)
              for metric in (monitoring.CPU, monitoring.CPU_TOTAL)}  # fmt: skip
    series[stops] = {at: value for at, value in series[stops].items() if at <= now_s - since_s}
    seen = MonitoringSource(SHOP, "nodes", FakeMonitoring(series), total=True).read(now_s * 10**6)
    policy = Policy(min=1, max=99, target_cpu_total=70)
    found, _ = decide(
        policy,
        Observation(5, seen.at_us, seen.cpu, cpu_total=seen.cpu_total),
        State(),
        now_s * 10**6,
    )
    assert (found.rule, found.to_size) == ("hold", 5)
    assert words in found.why


def test_no_series_is_no_metrics_and_an_error_is_said() -> None:
    fake = FakeMonitoring({})
    source = MonitoringSource(SHOP, "nodes", fake)
    assert source.read(1_200_000_000) == Metrics()
    fake.error = api.PermissionDenied("monitoring.timeSeries.list denied")
    with pytest.raises(MetricsError, match="denied"):
        source.read(1_200_000_000)
