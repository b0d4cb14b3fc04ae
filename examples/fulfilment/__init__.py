"""A small fulfilment service on `late`: trips come in, and each has work that must be done.

Read it in this order: `app` (the tasks), `service` (where they are enqueued, in the same
transaction as the trip), `check` (what must be true at the end), `main` (which starts it all and
kills a worker in the middle). `trips` reads or makes the input, `database` holds the service's own
tables, and `witness` keeps a record of every run outside of the database.
"""
