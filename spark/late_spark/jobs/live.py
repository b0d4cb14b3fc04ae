"""`late report live` for `spark-submit`."""

from __future__ import annotations

from late_spark.jobs import main

if __name__ == "__main__":
    main(__file__)
