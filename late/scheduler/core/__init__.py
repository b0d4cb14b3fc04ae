"""The state machine of one shard: events in, effects out. Pure."""
