"""The parent of several worker processes on one machine: `late worker --processes N`."""
