"""Decide what runs next: one state machine without I/O per (consumer group, shard).

    log page ──▶ waiting (due soon) ──▶ ready ──▶ running ──▶ ended ──▶ settled
                    │        held (ordering key) ▲    │ failed, snoozed
                    └──▶ parked (timer table) ───┘◀───┘

The life of a task, step by step. `tests/unit/test_paths_core.py` follows a task through the steps
from its page on.

| step | where | what it does |
|---|---|---|
| enqueue | `App.enqueue` | encodes the call |
| insert | `late/outbox/insert.py` | writes its row in the caller's transaction |
| tail | `Tailer.run`, `Scheduler.pages` | reads the log from the shard's cursor on |
| admit | `core/transitions.py: admit` | makes it ready, lets it wait, holds or parks it |
| start | `core/starts.py: grant` | chooses what starts now, within the limits |
| run | `Dispatcher.run_one` | calls the handler |
| classify | `late/handler/classify.py` | makes an outcome of how the handler ended |
| decide | `core/ends.py: finished` | ends it, or parks it as `outcome_rules.py` says |
| settle | `ShardCore.settlement`, `core/ends.py: settled` | makes it durable, with the settler |
| prune | `late/worker/maintenance.py` | removes its row when no group needs it |

`scheduler.py` is the loop that carries events and effects between the cores and the store, the
tailer and the dispatcher. `core/` is the state machine: `ShardCore.step` moves a `CoreState`, which
is made of parts (window, timers, ordering keys, the pending settlement and so on). `limits/` says
what the settings allow. Modules beside these hold values and functions of values.

What fails, and what then holds:

| failure | what holds |
|---|---|
| settle fails or its outcome is unknown | the same settlement is repeated; nothing is forgotten |
| fenced | the core is thrown away; its late results are dropped |
| owner dies | the next one starts from the last checkpoint: runs again what had started |
| a task is slow | it stays in `open`; the cursor and all others move on |
"""
