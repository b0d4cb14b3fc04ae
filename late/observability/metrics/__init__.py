"""The metrics of `late`: their catalogue, their values, and the formats in which they are sent.

| module | contents | pure |
|---|---|---|
| `catalogue.py` | every metric: name, labels, and the event or look that it comes from | yes |
| `registry.py` | their present values, with a bound on the number of series | yes |
| `from_events.py` | values from events | |
| `prometheus.py` | values as text for a scrape | yes |
| `http_server.py` | `/metrics` for processes without an event loop | |
| `otel_values.py` | the same values, under the same names, for OpenTelemetry | |

Metrics use the counts that `late` makes anyway: a settlement's usage, a page, a commit. Nothing
here is called once per task.
"""

from __future__ import annotations

from late.observability.metrics.catalogue import METRICS, Metric
from late.observability.metrics.from_events import follow
from late.observability.metrics.prometheus import (
    CONTENT_TYPE,
    PREFIX,
    SHADOW_PREFIX,
    render,
)
from late.observability.metrics.registry import OTHER, Registry, metrics_of

__all__ = [
    "CONTENT_TYPE",
    "METRICS",
    "OTHER",
    "PREFIX",
    "SHADOW_PREFIX",
    "Metric",
    "Registry",
    "follow",
    "metrics_of",
    "render",
]
