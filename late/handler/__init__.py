"""What a handler sees: its context, batches, arguments and outcomes."""
