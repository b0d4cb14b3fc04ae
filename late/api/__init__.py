"""The interfaces that a process offers to others: HTTP, gRPC, and the pull queues behind both.

| module | contents | pure |
|---|---|---|
| `pull/receipts.py`, `limits.py`, `errors.py` | receipts, bounds, errors and their codes | yes |
| `schemas.py` | requests and answers in JSON | yes |
| `payloads.py` | a task's payload in JSON | yes |
| `pull/deliveries.py` | the attempts that a consumer gets, from the pools of this process | |
| `access/` | tokens as the database has them now, what they allow, sign-ins, connections | |
| `producer.py`, `service.py` | enqueue, take, answer, look: once for every interface | |
| `http/` | the HTTP API, events, signed URLs, its OpenAPI document and its server | |
| `grpc/` | the gRPC API | |
| `operator/` | what operators ask and change, as one table for both | |
| `fleet/` | the pulled tasks of other processes, and handlers without shards | |
| `settings.py` | the settings of `late serve` | |
| `server.py`, `server_parts.py` | `late serve`: a worker with the interfaces beside it | |
| `handler_server.py` | `late.serve_handlers`: a service that receives tasks by gRPC push | |
| `handler_messages.py` | the messages of `late.v1.Handler`, as attempts and verdicts | yes |
"""
