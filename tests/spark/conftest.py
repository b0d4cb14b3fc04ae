"""One Spark session for all tests of this folder: starting it takes longer than most of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from late_spark import session
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        # PySpark leaves sockets and files to the collector.
        warnings.simplefilter("ignore")
        made = session.start(cores=2, memory="1g", archive=False)
        yield made
        session.stop(made)
