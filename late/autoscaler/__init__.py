"""The autoscaler: the database's size follows its load.

    metrics ──▶ Seen ──▶ decide(policy, seen, state) ──▶ Decision ──▶ journal ──▶ resize
                              (pure)                                 (fenced)

`policy` says what is wanted, `decide` is the rule and knows no clock, `simulator` drives the same
rule on recorded or made load, and `autoscaler` is the thin loop that carries decisions out. What
may never happen (below the minimum, below what the storage needs, faster than the limits, on stale
metrics) is the last step of `decide`, after every rule, so that no rule can get around it.
"""
