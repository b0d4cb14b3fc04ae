"""One Spark session for all tests of this folder: starting it takes longer than most of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from late_spark import session
from pyspark.sql import SparkSession

from tests import servers


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Spark's workers have the environment in which its JVM was started.
    servers.spanner_host()
    with warnings.catch_warnings():
        # PySpark leaves sockets and files to the collector.
        warnings.simplefilter("ignore")
        made = session.start(cores=2, memory="1g", archive=False, quick=True)
        # Compiling each query would take longer than these frames take to read.
        made.conf.set("spark.sql.codegen.wholeStage", "false")
        made.conf.set("spark.sql.shuffle.partitions", "1")
        yield made
        session.stop(made)
