"""Runs attempts where their handlers are, and settles what became of them.

    submit ──▶ waiting ──▶ slot ──▶ target ──▶ classify ──▶ finished ──▶ on_finished (a batch)
               (deque)    (fixed    event loop, thread       (list)       once per loop pass
                           number)  or child process

| what goes wrong | what happens |
|---|---|
| the handler raises | `failed`; whether it may be repeated is the retry policy's word |
| it outlives its time-out | a coroutine is cancelled, a process killed and replaced |
| it cannot be ended (thread) | stuck: its attempt and its slot stay taken until it ends |
| its child process dies | `died` for that attempt alone; the child is replaced, with backoff |
| the worker stops | it may finish within the grace, then `interrupted`: no attempt is used |
| the shard is fenced | what comes of it is dropped and counted: another owner runs it again |

`dispatcher.py` is the loop, `inprocess.py` the target, `settle.py` the group commit; `threads.py`
and `processes.py` are the pools (`link.py` and `child.py` the two ends of a child process,
`wire.py` what they say); `slot.py` holds what one slot is doing; `classify.py` is pure.

Services that execute tasks are other targets: `remote.py` makes handlers of them, `grpc_push.py`
(with `endpoints.py`) and `http_push.py` (with `webhooks.py`) call them, `answers.py` says what
their answers mean, `targets.py` how they are configured, `pools.py` what a worker has of them,
and `serving.py` is the other end in Python.
"""
