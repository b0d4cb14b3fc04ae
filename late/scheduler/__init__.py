"""Decide what runs next: one sans-I/O state machine per (consumer group, shard).

    log page ──▶ waiting (due soon) ──▶ ready ──▶ running ──▶ ended ──▶ settled
                    │        held (ordering key) ▲    │ failed, snoozed
                    └──▶ parked (timer table) ───┘◀───┘

`core.py` is the state machine (`core_reads.py`: what it reads; `core_state.py`: its parts),
built from pure parts: `window.py` (which records are covered, the checkpoint), `timers.py` (due
times), `calling.py` (what nobody fetched), `keys.py` (ordering keys), `fairness.py` (priorities),
`backoff.py`, `ledger.py` (usage), `cron.py` and `recurring.py` (schedules). `scheduler.py` is the
loop that carries events and effects between the cores and the store, tailer and dispatcher.

What fails, and what then holds:

| failure | what holds |
|---|---|
| settle fails or its outcome is unknown | the same settlement is repeated; nothing is forgotten |
| fenced | the core is thrown away; its late results are dropped |
| owner dies | the next one starts from the last checkpoint: runs again what had started |
| a task is slow | it stays in `open`; the cursor and all others move on |
"""
