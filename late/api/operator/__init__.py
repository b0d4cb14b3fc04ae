"""The questions and changes of operators over HTTP and gRPC: the commands of `late`, as operations.

Each module has the operations of one subject, which call `late.control` and add nothing to it.
`table.OPERATIONS` lists them all. The routes, the OpenAPI document, the table in `docs/http.md` and
`proto/late/v1/operator.proto` are made from that list. `operators.Operators` runs them.
"""
