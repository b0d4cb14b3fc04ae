"""The app that the judged consumers work for: a pulled queue for each scenario."""

from __future__ import annotations

import os

import late
from tests.consumers.names import SCENARIOS

app = late.App(os.environ["LATE_URL"])
for queue in SCENARIOS:
    app.route(queue, target="pull", result_ttl=3_600, retry=late.Retry(base=0.05, jitter="none"))
