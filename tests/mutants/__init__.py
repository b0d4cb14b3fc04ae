"""Break `late` at random, and see whether a test notices: `make mutants`."""
