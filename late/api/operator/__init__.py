"""The questions and changes of operators over HTTP: the commands of `late`, as operations.

Each module has the operations of one subject, which call `late.control` and add nothing to it.
`table.OPERATIONS` lists them all. The routes, the OpenAPI document and the table in `docs/http.md`
are made from that list.
"""
