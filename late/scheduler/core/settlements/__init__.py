"""Settlements of one shard: the next one as it is collected, and those in a shared transaction."""
