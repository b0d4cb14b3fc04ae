"""A queue's past with other knobs or workers: attempts of the journal, run again.

`attempts` makes them of the journal's counts, `fleet` runs them under the scheduler's own limiters,
`variants` says what is to be tried, `simulation` reads the journal and compares.
"""
