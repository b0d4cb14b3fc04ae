"""The constants of `late size`, by store: written by `scripts/size_figures.py`."""

from __future__ import annotations

from late.model.size_estimate import RateFigures, StoreFigures

FIGURES: dict[str, StoreFigures] = {
    "postgresql": StoreFigures(
        measured="2026-11-25, AMD EPYC, PostgreSQL 15.18",
        loop_ms=3.532,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=20.0,
                journal_rows=1.0,
                worker_wal_bytes=439.3,
                worker_cpu_us=6374.0,
                server_cpu_us=4155.0,
            ),
        ),
        producer_wal_bytes=513.5,
        idle_worker_cpu=0.0111,
        idle_server_cpu=0.003398,
        idle_wal_per_s=276.6,
        connections=6.25,
    ),
    "spanner": StoreFigures(
        measured="2026-11-25, AMD EPYC, Spanner's emulator",
        loop_ms=3.582,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=2.0,
                journal_rows=1.0,
                worker_cpu_us=130300.0,
                reads=51.03,
                commits=0.8058,
                mutations=0.0,
            ),
        ),
        idle_worker_cpu=0.05763,
        idle_reads_per_s=9.462,
        idle_commits_per_s=1.636,
        idle_mutations_per_s=15.72,
    ),
    "sqlite": StoreFigures(
        measured="2026-11-25, AMD EPYC, SQLite 3.40.1",
        loop_ms=3.574,
        shards=8,
        payload_bytes=120,
        rates=(RateFigures(rate=20.0, journal_rows=1.0, worker_cpu_us=5096.0),),
        idle_worker_cpu=0.009036,
    ),
}
