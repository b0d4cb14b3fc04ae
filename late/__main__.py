"""`python -m late`: the same as the command `late`, where its script is not on the path."""

from __future__ import annotations

from late.cli.main import main

if __name__ == "__main__":
    main()
