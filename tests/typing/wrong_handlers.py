"""Mistakes in declarations. Each line with a mark must have exactly these errors."""

from __future__ import annotations

import late

app = late.App("sqlite:///trips.db", shrads=8)  # error: call-arg, reportCallIssue
late.Retyr(max_attempts=5)  # error: attr-defined, reportAttributeAccessIssue
late.Retry(max_atempts=5)  # error: call-arg, reportCallIssue


@app.task(retry=3)  # error: call-overload, reportArgumentType
def three(trip_id: int) -> None: ...


@app.task(retries=3)  # error: call-overload, reportCallIssue
def unknown(trip_id: int) -> None: ...


@app.task(queue=7)  # error: call-overload, reportArgumentType
def number(trip_id: int) -> None: ...


@app.task(batch=100)  # error: arg-type, reportArgumentType
def one_by_one(trip_id: int) -> None: ...


@app.schedule("0 3 * * *", catch_up="never")  # error: arg-type, reportArgumentType
@app.task
def nightly() -> None: ...


app.remote("distant", target="billing", process=True)  # error: call-overload, reportCallIssue
app.route("mail", taget="billing")  # error: call-arg, reportCallIssue
