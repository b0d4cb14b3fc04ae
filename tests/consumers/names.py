"""The scenarios' names, which are also those of their queues."""

SCENARIOS = (
    "once",
    "values",
    "retry",
    "dead-letter",
    "long",
    "not-capable",
    "kill",
    "stop-short",
    "stop-long",
    "lost-answers",
)
