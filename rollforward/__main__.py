"""`python -m rollforward`, the same as the command `rollforward`."""

import sys

from rollforward.cli import main

if __name__ == "__main__":
    sys.exit(main())
