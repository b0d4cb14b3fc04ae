"""Wake-ups after a commit: the notifier sends them, the listener receives them."""
