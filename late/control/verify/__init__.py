"""`late verify`: an account of every task of a group and shard."""
