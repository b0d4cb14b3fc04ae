"""The store on CockroachDB (experimental)."""
