"""The constants of `late size`, by store: written by `scripts/size_figures.py`."""

from __future__ import annotations

from late.model.size.estimate import RateFigures, StoreFigures

FIGURES: dict[str, StoreFigures] = {
    "postgresql": StoreFigures(
        measured="2026-11-25, AMD EPYC, PostgreSQL 15.18",
        loop_ms=4.317,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=1.0,
                journal_rows=1.0,
                worker_wal_bytes=361.8,
                worker_cpu_us=12880.0,
                server_cpu_us=10240.0,
            ),
            RateFigures(
                rate=100.0,
                journal_rows=0.2,
                worker_wal_bytes=233.6,
                worker_cpu_us=1393.0,
                server_cpu_us=792.2,
            ),
            RateFigures(
                rate=999.6,
                journal_rows=0.032,
                worker_wal_bytes=28.94,
                worker_cpu_us=412.3,
                server_cpu_us=160.0,
            ),
        ),
        log_task_bytes=317.8,
        producer_wal_bytes=542.4,
        idle_worker_cpu=0.00272,
        idle_server_cpu=0.001533,
        idle_wal_per_s=204.3,
        connections=8.0,
        delayed=RateFigures(
            rate=100.0,
            journal_rows=0.2,
            worker_wal_bytes=564.5,
            worker_cpu_us=63.61,
            server_cpu_us=-93.15,
        ),
        retried=RateFigures(
            rate=100.0,
            journal_rows=1.598,
            worker_wal_bytes=1231.0,
            worker_cpu_us=1118.0,
            server_cpu_us=557.9,
        ),
    ),
    "spanner": StoreFigures(
        measured="2026-11-25, AMD EPYC, Spanner's emulator",
        loop_ms=4.085,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=1.0,
                journal_rows=1.0,
                worker_cpu_us=97290.0,
                reads=63.4,
                commits=0.9816,
                mutations=11.0,
            ),
            RateFigures(
                rate=10.0,
                journal_rows=1.0,
                worker_cpu_us=20250.0,
                reads=10.4,
                commits=0.9913,
                mutations=10.89,
            ),
        ),
        idle_worker_cpu=0.04929,
        idle_reads_per_s=6.809,
        idle_commits_per_s=1.072,
        idle_mutations_per_s=0.0,
    ),
    "sqlite": StoreFigures(
        measured="2026-11-25, AMD EPYC, SQLite 3.40.1",
        loop_ms=4.921,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(rate=1.0, journal_rows=1.0, worker_cpu_us=11190.0),
            RateFigures(rate=100.0, journal_rows=0.2, worker_cpu_us=1332.0),
            RateFigures(rate=997.0, journal_rows=0.0328, worker_cpu_us=612.2),
        ),
        log_task_bytes=208.9,
        idle_worker_cpu=0.004577,
        delayed=RateFigures(rate=100.0, journal_rows=0.2, worker_cpu_us=345.3),
        retried=RateFigures(rate=100.0, journal_rows=1.605, worker_cpu_us=1640.0),
    ),
}
