"""Only one dev server at a time uses a .dev folder."""

import fcntl
import os
from pathlib import Path
from typing import IO

from rollforward.local.errors import PlatformError


def take(folder: Path) -> IO[str]:
    """Return the folder's lock, held until it is closed.

    Raises:
        PlatformError: another dev server holds it; says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read().strip()
        lock.close()
        raise PlatformError(
            f"A dev server already runs here (pid {owner}). "
            "Stop it, or start this one with --memory."
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock
