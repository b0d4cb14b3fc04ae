"""The parts that a handler uses: its context, batches, arguments and outcomes."""
