"""The constants of `late size`, by store: written by `scripts/size_figures.py`."""

from __future__ import annotations

from late.model.size_estimate import RateFigures, StoreFigures

FIGURES: dict[str, StoreFigures] = {
    "postgresql": StoreFigures(
        measured="2026-11-25, AMD EPYC, PostgreSQL 15.18",
        loop_ms=3.747,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=1.0,
                journal_rows=1.0,
                worker_wal_bytes=1956.0,
                worker_cpu_us=46130.0,
                server_cpu_us=22230.0,
            ),
            RateFigures(
                rate=100.1,
                journal_rows=0.9953,
                journal_row_bytes=367.6,
                worker_wal_bytes=470.7,
                worker_cpu_us=900.2,
                server_cpu_us=539.5,
            ),
            RateFigures(
                rate=589.4,
                journal_rows=0.5008,
                journal_row_bytes=398.0,
                worker_wal_bytes=246.5,
                worker_cpu_us=244.0,
                server_cpu_us=128.8,
            ),
        ),
        log_task_bytes=303.7,
        producer_wal_bytes=557.3,
        idle_worker_cpu=0.01068,
        idle_server_cpu=0.003683,
        idle_wal_per_s=266.5,
        connections=6.5,
        delayed=RateFigures(
            rate=100.0,
            journal_rows=0.8847,
            worker_wal_bytes=1110.0,
            worker_cpu_us=1601.0,
            server_cpu_us=1192.0,
        ),
        retried=RateFigures(
            rate=100.0,
            journal_rows=0.2377,
            worker_wal_bytes=974.3,
            worker_cpu_us=404.8,
            server_cpu_us=174.8,
        ),
    ),
    "spanner": StoreFigures(
        measured="2026-11-25, AMD EPYC, Spanner's emulator",
        loop_ms=4.104,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(
                rate=1.0,
                journal_rows=1.0,
                worker_cpu_us=112100.0,
                reads=69.93,
                commits=1.565,
                mutations=11.52,
            ),
            RateFigures(
                rate=10.0,
                journal_rows=0.9183,
                worker_cpu_us=17600.0,
                reads=8.591,
                commits=0.9612,
                mutations=10.14,
            ),
        ),
        idle_worker_cpu=0.04641,
        idle_reads_per_s=6.284,
        idle_commits_per_s=1.437,
        idle_mutations_per_s=0.0,
    ),
    "sqlite": StoreFigures(
        measured="2026-11-25, AMD EPYC, SQLite 3.40.1",
        loop_ms=3.643,
        shards=8,
        payload_bytes=120,
        rates=(
            RateFigures(rate=1.0, journal_rows=1.0, worker_cpu_us=41440.0),
            RateFigures(
                rate=100.0, journal_rows=0.758, journal_row_bytes=272.9, worker_cpu_us=976.9
            ),
        ),
        log_task_bytes=208.9,
        idle_worker_cpu=0.008185,
        delayed=RateFigures(rate=100.0, journal_rows=0.9785, worker_cpu_us=896.4),
        retried=RateFigures(rate=100.0, journal_rows=0.8595, worker_cpu_us=833.5),
    ),
}
