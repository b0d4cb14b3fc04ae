"""What a process offers to others: HTTP, gRPC, and the pull queues behind both.

| module | what | pure |
|---|---|---|
| `receipts.py`, `limits.py`, `failures.py` | pop receipts, bounds, errors and their codes | yes |
| `wire.py`, `openapi.py` | requests and answers in JSON, and their description | yes |
| `opening.py`, `source.py` | from an attempt to what a consumer gets | half |
| `access.py` | who may do what: tokens as the database has them now | |
| `produce.py`, `service.py` | enqueue, take, answer, look: once for every interface | |
| `http.py`, `listen.py` | the HTTP API and its server | |
| `rpc.py` | the gRPC API | |
| `serve.py` | `late serve`: a worker with these beside it | |
"""
