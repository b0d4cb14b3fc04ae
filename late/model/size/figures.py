"""The constants of `late size`, by store: written by `scripts/size_figures.py`."""

from __future__ import annotations

from late.model.size.estimate import RateFigures, StoreFigures

FIGURES: dict[str, StoreFigures] = {
    "postgresql": StoreFigures(
        measured="2026-11-30, AMD EPYC, PostgreSQL 15.18",
        loop_ms=4.283,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=1.001,
                journal_rows=1.0,
                worker_wal_bytes=387.0,
                worker_cpu_us=3609.0,
                server_cpu_us=5972.0,
            ),
            RateFigures(
                rate=100.0,
                journal_rows=0.2,
                journal_row_bytes=498.2,
                worker_wal_bytes=111.0,
                worker_cpu_us=1451.0,
                server_cpu_us=529.4,
            ),
            RateFigures(
                rate=1001.0,
                journal_rows=0.032,
                journal_row_bytes=904.5,
                worker_wal_bytes=32.73,
                worker_cpu_us=415.6,
                server_cpu_us=105.2,
            ),
        ),
        log_task_bytes=304.7,
        producer_wal_bytes=561.9,
        idle_worker_cpu=0.001965,
        idle_server_cpu=0.0006616,
        idle_wal_per_s=89.41,
        connections=8.0,
        delayed=RateFigures(
            rate=100.1,
            journal_rows=0.2,
            worker_wal_bytes=688.7,
            worker_cpu_us=604.0,
            server_cpu_us=74.29,
        ),
        retried=RateFigures(
            rate=100.1,
            journal_rows=0.808,
            worker_wal_bytes=1216.0,
            worker_cpu_us=1593.0,
            server_cpu_us=689.9,
        ),
    ),
    "spanner": StoreFigures(
        measured="2026-11-30, AMD EPYC, Spanner's emulator",
        loop_ms=5.372,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=1.002,
                journal_rows=1.0,
                worker_cpu_us=189600.0,
                reads=64.66,
                commits=1.66,
                mutations=10.62,
            ),
            RateFigures(
                rate=10.01,
                journal_rows=1.0,
                worker_cpu_us=34490.0,
                reads=10.74,
                commits=1.076,
                mutations=11.07,
            ),
        ),
        idle_worker_cpu=0.07932,
        idle_reads_per_s=6.956,
        idle_commits_per_s=1.159,
        idle_mutations_per_s=0.07479,
    ),
    "sqlite": StoreFigures(
        measured="2026-11-30, AMD EPYC, SQLite 3.40.1",
        loop_ms=5.034,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(rate=1.0, journal_rows=1.0, worker_cpu_us=3050.0),
            RateFigures(
                rate=100.0, journal_rows=0.2, journal_row_bytes=341.3, worker_cpu_us=1498.0
            ),
            RateFigures(rate=1000.0, journal_rows=0.032, worker_cpu_us=620.7),
        ),
        log_task_bytes=208.5,
        idle_worker_cpu=0.006998,
        delayed=RateFigures(rate=100.0, journal_rows=0.2, worker_cpu_us=1025.0),
        retried=RateFigures(rate=100.0, journal_rows=0.808, worker_cpu_us=1154.0),
    ),
}
