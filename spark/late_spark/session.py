"""One Spark session for all reports: embedded (`local[*]`), or the cluster's own.

Under `spark-submit` the session of the cluster is used as it is, with the data source registered.
Otherwise a local one is started: see `java.py` for what makes that quick.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from late.errors import ConfigError
from late_spark import java

MEMORY = "2g"
NEEDED = {
    # Bounds of months and days are converted by the reports, which know the zone that was asked.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""The settings that the reports rely on, in any session."""
SETTINGS = {
    **NEEDED,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Reports group into few rows: 200 shuffle partitions would be 200 nearly empty tasks.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.ui.explainMode": "formatted",
}


def start(
    *,
    cores: int | None = None,
    memory: str = MEMORY,
    progress: bool = False,
    archive: bool = True,
    quick: bool = False,
) -> SparkSession:
    """The session of this process: made if there is none.

    Args:
        cores: None for all.
        memory: of the JVM, as `2g`.
        progress: Spark's own bar on standard error while it works.
        archive: whether `stop` may take the time to write the classes' archive, if there is none.
        quick: compile little: sooner ready, slower with much to read.

    Raises:
        ConfigError: no Java, or it does not start.
    """
    found = SparkSession.getActiveSession()
    if found is None and java.submitted():
        found = _cluster()
    elif found is None:
        found = _local(cores, memory, progress=progress, keep=archive, quick=quick)
    from late_spark.source import LateSource

    found.dataSource.register(LateSource)
    return found


def _cluster() -> SparkSession:
    builder = SparkSession.builder.appName("late")
    for name, value in NEEDED.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _local(
    cores: int | None, memory: str, *, progress: bool, keep: bool, quick: bool
) -> SparkSession:
    runtime = java.find()
    folder = java.home(runtime)
    # The heap's size and the collector decide about the layout of what is shared.
    archive = folder / f"classes-{memory}.jsa"
    draft = folder / f"classes-{memory}.{os.getpid()}.jsa"
    jvm = java.options(memory, archive, record=draft if keep else None, quick=quick)
    settings = {
        **SETTINGS,
        "spark.ui.showConsoleProgress": "true" if progress else "false",
        "spark.master": f"local[{cores or '*'}]",
        "spark.app.name": "late",
        # Frames of a report live and die with the session: no Hive, no folder in the user's own.
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    before = {name: os.environ.get(name) for name in java.environment(folder, runtime, jvm)}
    os.environ.update(java.environment(folder, runtime, jvm))
    try:
        builder = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    except Exception as error:
        raise ConfigError(f"Spark did not start with {runtime}: {error}") from error
    finally:
        for name in ("SPARK_HOME", "LATE_JAVA", "LATE_JAVA_OPTIONS", "PYTHONPATH"):
            was = before[name]
            if was is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = was


def stop(session: SparkSession, *, timeout_s: float = 60.0) -> None:
    """End the session and its JVM; the first one leaves the archive of its classes behind."""
    gateway: Any = session.sparkContext._gateway
    session.stop()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return  # a cluster's
    from pyspark import SparkContext

    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    if process.stdin is not None:
        process.stdin.close()  # upon which it ends
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    if process.poll() is None:
        process.kill()
        process.wait()
    _keep_archive()


def _keep_archive() -> None:
    for folder in java.cache().glob("*-*"):
        for draft in folder.glob(f"classes-*.{os.getpid()}.jsa"):
            draft.replace(_final(draft))


def _final(draft: Path) -> Path:
    name, _, _ = draft.name.removesuffix(".jsa").rpartition(".")
    return draft.with_name(f"{name}.jsa")
