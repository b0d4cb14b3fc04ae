"""The autoscaler: the database's size follows its load.

    metrics ──▶ Observation ──▶ decide(policy, seen, state) ──▶ Decision ──▶ journal ──▶ resize
                                         (pure)                              (fenced)

`policy` holds the settings, `decide` is the rule and reads no clock, `simulation` drives the same
rule on recorded or generated load, and `autoscaler` is the loop that carries decisions out. The
limits that must always hold (the minimum, the room that the storage needs, the step limits, no
change on stale metrics) are the last step of `decide`, after every rule, so that no rule can
bypass them.
"""
