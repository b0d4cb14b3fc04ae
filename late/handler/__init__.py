"""The handler's side: its context, batches, arguments and outcomes."""
