"""Owning shards and reading their logs."""
