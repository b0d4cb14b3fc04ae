"""`python -m late.cli`: the same as the command `late`."""

from __future__ import annotations

from late.cli.main import main

if __name__ == "__main__":
    main()
