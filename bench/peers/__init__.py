"""`make bench-peers`: `late` beside other queues, on one server, with one payload.

| file | what |
|---|---|
| `peers.toml` | who: pinned packages, how to see that nothing is left, what is said of it |
| `roster.py` | that file as values |
| `environments.py` | an environment of its own for each, under `.late/peers/` |
| `adapters/` | one program per peer, the same commands for all; it runs in the peer's environment |
| `programs.py` | starts those programs and reads what they say |
| `marks.py`, `cost.py`, `redis.py` | what handlers leave; what a database paid; a private Redis |
| `workloads.py` | W1 to W5, W7, W8: from the programs and the database to numbers |
| `table.py` | numbers to the tables of `docs/performance.md` |

What is measured is the same for all: a drain lasts from the first start of a handler until the
peer's *own storage* holds nothing unfinished, so whoever acknowledges late is measured late.
"""
