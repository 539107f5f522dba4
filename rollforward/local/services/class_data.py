"""Class-data archives: an emulator's Java classes, read and verified once for this machine.

Half of an emulator's start goes into reading some thousand classes out of its jar and verifying
them. Java (13 and later) can write the result into an archive, and map that at each start
(JEP 350, 2019). class_training.py makes the archives; they lie next to the installed packages. Java
verifies an archive against the jar, and starts without one that does not match. So an archive never
keeps an emulator from starting.
"""

import contextlib
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(sys.prefix) / "class-data"


def archive_of(command: Sequence[str]) -> Path:
    """Return where the archive lies for the Java and the jar of a command, made or not.

    Another Java or another jar has an archive of its own.

    Raises:
        OSError: the Java or the jar does not exist.
        ValueError: it is no command of Java.
    """
    digest = hashlib.sha256()
    for name in (command[0], command[command.index("-cp") + 1]):
        file = Path(name).resolve()
        state = file.stat()
        digest.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    return FOLDER / f"{digest.hexdigest()[:16]}.jsa"


def mapped(command: Sequence[str]) -> list[str]:
    """Return a command that maps its archive; as it was where there is none, or no Java."""
    with contextlib.suppress(OSError, ValueError):
        archive = archive_of(command)
        if archive.is_file():
            # What Java says of an archive that does not fit helps nobody.
            flags = [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"]
            return [command[0], *flags, *command[1:]]
    return list(command)


def written(command: Sequence[str], archive: Path) -> list[str]:
    """Return a command that writes an archive when it ends."""
    return [command[0], f"-XX:ArchiveClassesAtExit={archive}", *command[1:]]
