"""Who aborts or blocks whom, on which row: see `late.control.analyze.report`."""
