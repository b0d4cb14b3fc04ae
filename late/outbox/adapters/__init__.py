"""One adapter for each driver that a producer may use."""
