"""`python -m fastsft <command>`: the same as `fastsft <command>`."""

from __future__ import annotations

import sys

from fastsft.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
