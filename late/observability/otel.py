"""Send the metrics and spans of this process by OpenTelemetry's exporters.

Endpoint, headers and certificates come from OpenTelemetry's own variables
(`OTEL_EXPORTER_OTLP_ENDPOINT`, ...), the name of the service from `OTEL_SERVICE_NAME`. A service
that has set up a tracer provider of its own keeps it.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from late import config
from late.errors import ConfigError
from late.observability import traces
from late.observability.metrics import Registry

logger = logging.getLogger("late.observability")

SEND_MS = 5_000


def make(worker: str) -> OtelExporter:
    """Begin to make spans, and to send them.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    try:
        return OtelExporter(worker)
    except ImportError as error:
        raise ConfigError(
            f"OpenTelemetry is not installed ({error.name}): pip install 'late-queue[otel]'"
        ) from None


class OtelExporter:
    """The exporter of one process. `metrics` blocks for as long as the collector takes."""

    def __init__(self, worker: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME") or "late",
                "service.instance.id": worker,
                "service.version": config.package_version(),
            }
        )
        self._exporter = OTLPMetricExporter()
        self._since_ns = time.time_ns()
        self._provider: Any = None
        if not isinstance(trace.get_tracer_provider(), TracerProvider):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        traces.enable(self._provider)

    def metrics(self, registry: Registry) -> None:
        """Send the present values.

        If the collector cannot be reached, that is logged. Nothing is lost: counters count from
        the beginning, so the next call sends everything.
        """
        from opentelemetry.sdk.metrics.export import MetricExportResult

        from late.observability.metrics import otel_values as otel

        try:
            data = otel.data_of(registry, self._resource, self._since_ns, time.time_ns())
            if self._exporter.export(data, timeout_millis=SEND_MS) is MetricExportResult.SUCCESS:
                return
        except Exception as error:
            logger.warning("metrics could not be sent: %s", error)
            return
        logger.warning("metrics could not be sent")

    def close(self, registry: Registry) -> None:
        """Send the rest, and stop making spans."""
        self.metrics(registry)
        traces.disable()
        if self._provider is not None:
            self._provider.shutdown()
        self._exporter.shutdown()
