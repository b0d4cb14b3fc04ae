"""Drills: incidents made for real, and what an operator is told of them, by whom and when.

`make drills` makes each on PostgreSQL with two worker processes, asks the overview, `late top`,
`late doctor` and the alert rules until they name it, and runs the commands of its runbook as they
stand. A short version is `tests/integration/test_drills.py`.
"""
