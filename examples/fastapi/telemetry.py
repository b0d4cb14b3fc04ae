"""Sends the spans of this process by OTLP with LATE_OTEL=1, as `late worker` does.

FastAPI makes a span of each request by itself. The tasks of a request belong to that span.
"""

import os

from opentelemetry import trace


def start() -> None:
    """Send spans where OTEL_EXPORTER_OTLP_ENDPOINT says, as the service OTEL_SERVICE_NAME."""
    if os.environ.get("LATE_OTEL") != "1":
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
