"""What a process offers to others: HTTP, gRPC, and the pull queues behind both.

| module | what | pure |
|---|---|---|
| `receipts.py`, `limits.py`, `failures.py` | pop receipts, bounds, errors and their codes | yes |
| `wire.py`, `openapi.py` | requests and answers in JSON, and their description | yes |
| `opening.py`, `source.py` | from an attempt to what a consumer gets | half |
| `access.py`, `gate.py` | who may do what: tokens as the database has them now | |
| `produce.py`, `service.py` | enqueue, take, answer, look: once for every interface | |
| `http.py`, `listen.py` | the HTTP API and its server | |
| `rpc.py`, `stream.py`, `messages.py` | the gRPC API | |
| `peers.py`, `fleet.py` | the pulled tasks of other processes | |
| `consumer.py`, `session.py` | `late.Consumer`, the client | |
| `offer.py` | what is asked of `late serve` | yes |
| `serve.py` | `late serve`: a worker with these beside it | |
"""
