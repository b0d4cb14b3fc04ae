"""The errors of Spark in one line. Spark itself need not be installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from late import errors

_OURS = re.compile(r"^(?:late\.errors|late_spark\.parts)\.(\w+): (.+)$", re.MULTILINE)
"""An error of ours in what Spark says of a task of Python that failed."""


@contextmanager
def explained() -> Iterator[None]:
    """Raise here what a reader raised: Spark passes it on as the text of a traceback.

    Raises:
        LateError: the last one in that text; or a `StoreError` with what Spark itself says.
    """
    try:
        yield
    except _of_spark() as error:
        found = _OURS.findall(str(error))
        if not found:
            raise errors.StoreError(f"Spark: {_plain(str(error))}") from error
        name, message = found[-1]
        raise getattr(errors, name, errors.StoreError)(message) from error


def _of_spark() -> tuple[type[Exception], ...]:
    """Return the classes of its errors; none where it is not loaded, so that none was raised."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _plain(text: str) -> str:
    """Return the line of a Java traceback that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes or lines or ["it did not say why"])[-1 if causes else 0][:400]
