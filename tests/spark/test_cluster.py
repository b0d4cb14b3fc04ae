"""The cost report on a standalone cluster: one master and two workers, from PySpark's own jars."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from late_spark import java as javas
from late_spark import jobs
from late_spark.export import export

from tests.spark import kit
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
DAY_US = 86_400 * kit.SECOND
START_S = 240.0
"""Until a server that does not say that it is ready is given up."""
PRICES = """
version: 1
name: production
currency: USD
prices:
- {line: nodes, unit: node_hour, price: "0.7", quantity: 3, drivers: {tasks: 70, bytes: 20}}
"""


@contextmanager
def server(environment: dict[str, str], log: Path, *words: str) -> Iterator[None]:
    """Run a class of Spark's jars."""
    command = [str(HOME / "bin" / "spark-class"), *words]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(log: Path, text: str, times: int = 1) -> str:
    """Wait for lines of a log, and return the first."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = [line for line in log.read_text(errors="replace").splitlines() if text in line]
        if len(found) >= times:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"no {text!r} in {log.name}:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A master and two workers of one core: the address, and the environment for its clients."""
    if shutil.which("java") is None:
        pytest.skip("no Java of the system")
    java = javas.find()
    environment = {
        **os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "JAVA_HOME": str(java.resolve().parents[1]), "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT}:{ROOT / 'spark'}",
    }  # fmt: skip
    logs = [tmp_path / f"{name}.log" for name in ("master", "first", "second")]
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as servers:
        servers.enter_context(server(environment, logs[0], master, *place))
        line = said(logs[0], "Starting Spark master at spark://127.0.0.1:")
        address = line.rpartition(" at ")[2].strip()
        for log in logs[1:]:
            work = ("--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / log.stem))
            servers.enter_context(server(environment, log, worker, *place, *work, address))
        said(logs[0], "Registering worker", 2)
        yield address, environment


def test_the_cost_report_on_a_cluster_of_two_workers_is_the_local_one(
    cli: Cli, tmp_path: Path, cluster: tuple[str, dict[str, str]]
) -> None:
    # Given a lake of six days, a file each
    kit.write(cli.url, [
        kit.settled(n, [kit.done(10 * n), kit.done(n * n, queue="r")],
                    at_us=kit.START_US + n * DAY_US)
        for n in range(1, 7)
    ])  # fmt: skip
    lake, prices, events = (tmp_path / name for name in ("lake", "prices.yaml", "events"))
    export(cli.url, lake)
    prices.write_text(PRICES)
    events.mkdir()
    asked = ["--from", "2026-09-21", "--to", "2026-09-28", "--by", "queue,day", "--lake",
             str(lake), "--prices", str(prices), "--out"]  # fmt: skip
    # When the report is made here, and by spark-submit on the cluster
    local = cli("report", "cost", *asked, str(tmp_path / "local"))
    assert local.code == 0, local.err
    address, environment = cluster
    settings = {
        "spark.driver.memory": "512m", "spark.executor.memory": "512m",
        "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false",
        "spark.sql.files.minPartitionNum": "6", "spark.sql.shuffle.partitions": "2",
        # Both workers are there before the first task is given out.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "240s",
    }  # fmt: skip
    options = [word for each in settings.items() for word in ("--conf", "=".join(each))]
    job = str(Path(jobs.__file__).with_name("cost.py"))
    submit = [str(HOME / "bin" / "spark-submit"), "--master", address, *options, job]
    ended = subprocess.run(
        [*submit, *asked, str(tmp_path / "cluster")], env=environment, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    # `spark-submit` puts both streams of the driver's program into one.
    assert "[report] starting Spark: spark-submit runs this" in ended.stdout
    # Then both are the same, and the executors of both workers have read the files
    for name in ("costs.csv", "focus.csv", "index.html"):
        made = [(tmp_path / where / name).read_bytes() for where in ("local", "cluster")]
        assert made[0] == made[1], name
    (log,) = events.iterdir()
    found = [json.loads(line) for line in log.read_text().splitlines()]
    read = {
        each["Task Info"]["Executor ID"]: each["Task Metrics"]["Input Metrics"]["Records Read"]
        for each in found
        if each["Event"] == "SparkListenerTaskEnd"
        and each["Task Metrics"]["Input Metrics"]["Records Read"]
    }
    assert set(read) == {"0", "1"}
