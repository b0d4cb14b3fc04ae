"""Wake-ups after a commit: who sends them and who hears them."""
