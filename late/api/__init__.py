"""What a process offers to others: HTTP, gRPC, and the pull queues behind both.

| module | what | pure |
|---|---|---|
| `receipts.py`, `tokens.py`, `limits.py`, `failures.py` | pop receipts, bearer tokens, bounds, errors and their codes | yes |
| `wire.py` | what requests and answers look like in JSON | yes |
| `access.py` | who may do what: tokens as the database has them now | |
| `service.py` | enqueue, receive, answer, look: one implementation for every interface | |
| `http.py`, `openapi.py`, `listen.py` | the HTTP API, its description, its server | |
| `rpc.py` | the gRPC API | |
| `serve.py` | `late serve`: a worker with these beside it | |
"""
