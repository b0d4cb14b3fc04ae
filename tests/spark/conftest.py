"""One Spark session for all tests of this folder: starting it takes longer than most of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from late_spark import duck, session
from late_spark.relation import OnSpark, Relation
from pyspark.sql import SparkSession

from tests import servers
from tests.spark import usage_kit

Related = Callable[[Sequence[tuple[Any, ...]]], Relation]
"""Makes rows of usage a relation of one engine."""


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


@pytest.fixture(scope="module", params=["duckdb", "spark"])
def related(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Related:
    """Make rows a relation, of each engine in turn."""
    if request.param == "spark":
        spark: SparkSession = request.getfixturevalue("spark")
        return lambda rows: OnSpark(spark.createDataFrame(list(rows), usage_kit.nullable()))

    def of_file(rows: Sequence[tuple[Any, ...]]) -> Relation:
        place = usage_kit.write(rows, tmp_path_factory.mktemp("usage") / "rows")
        return duck.opened(place.iterdir())

    return of_file
