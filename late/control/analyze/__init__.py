"""The analysis of conflicts between transactions; see `late.control.analyze.report`."""
