"""The choice of a metrics source by the words of a command line."""

from __future__ import annotations

import re
from pathlib import Path

from late.autoscaler.metrics.file import FileSource
from late.autoscaler.metrics.source import MetricsError, Source
from late.autoscaler.policy import Units
from late.errors import ConfigError


def create_source(text: str, instance: str | None, units: Units, *, total: bool = False) -> Source:
    """Make the source that a command line names: the file at a path, or `monitoring` for the
    instance (with the CPU of all priorities if `total`).

    Raises:
        ConfigError: no such file or columns, monitoring without an instance, or Google's client is
            not installed.
    """
    if text != "monitoring":
        if not Path(text).exists():
            raise ConfigError(f"no metrics {text[:200]!r}: neither a file nor `monitoring`")
        source = FileSource(Path(text))
        try:
            source.check()
        except MetricsError as error:
            raise ConfigError(str(error)) from None
        return source
    if instance is None:
        raise ConfigError("metrics from Cloud Monitoring need --spanner INSTANCE")
    if re.fullmatch(r"projects/[^/]+/instances/[^/]+", instance) is None:
        raise ConfigError(f"a Spanner instance is projects/P/instances/I, got {instance[:80]!r}")
    try:
        from late.autoscaler.metrics.google_metrics import MonitoringSource
    except ImportError:
        raise ConfigError("Cloud Monitoring needs pip install 'late-queue[spanner]'") from None
    return MonitoringSource(instance, units, total=total)
