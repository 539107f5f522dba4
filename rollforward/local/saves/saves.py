"""Saves of what Datastore holds: a folder each, whole or not there.

    .dev/datastore/<emulator>/saves/<project>/00000042/
        save.json       when, what else must be set again, and a checksum of each file
        all/...         the emulator's export

A save is written next to the others, forced to disk, and gets its name last. So after a kill at any
moment the newest name is a whole save. The last KEPT stay. The emulators read as much of a damaged
export as they can and say nothing, so its checksums are compared first.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rollforward.local.errors import ServiceFailedError

KEPT = 2
_FORMAT = 1
_FIELDS = {_FORMAT: ("as_of", "real_time", "next_id", "overall", "checksums")}
_ABOUT = "save.json"
_UNFINISHED, _UNFINISHED_NOTE = "unfinished", "unfinished.json"


@dataclass(frozen=True)
class Save:
    """One save.

    Attributes:
        folder: Its folder.
        as_of: The time on Cloud Tasks' clock just before it; all that it holds is older or
            hardly younger.
        real_time: The same on the machine's clock, for people.
        next_id: The count that ids continue from.
        overall: By database, the overall file of its export, as a path below the folder.
        checksums: By file, as a path below the folder, its SHA-256.
    """

    folder: Path
    as_of: float
    real_time: float
    next_id: int
    overall: Mapping[str, str]
    checksums: Mapping[str, str]

    def paths(self) -> dict[str, str]:
        """Return the overall files as they are now."""
        return {database: str(self.folder / path) for database, path in self.overall.items()}

    def size_bytes(self) -> int:
        """Return how much it takes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


class Saves:
    """The saves of one project."""

    def __init__(self, folder: Path) -> None:
        """Keep them in a folder, which is made when first used."""
        self.folder = folder

    @classmethod
    def of(cls, data_dir: Path, project: str) -> "Saves":
        """Return those in an emulator's folder."""
        return cls(data_dir / "saves" / project)

    def newest(self) -> Save | None:
        """Return the last save, None without any.

        Raises:
            ServiceFailedError: it is damaged.
        """
        named = self._named()
        return _read(named[-1]) if named else None

    def write(
        self, export: Callable[[Path], tuple[Mapping[str, str], int]], as_of: float, now_s: float
    ) -> Save:
        """Make a save.

        Args:
            export: Writes into a folder; returns overall files by database, and the next id.
            as_of: The time on Cloud Tasks' clock.
            now_s: The time on the machine's.
        """
        unfinished = self.folder / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        overall, next_id = export(unfinished)
        below = {name: str(Path(path).relative_to(unfinished)) for name, path in overall.items()}
        named = self._named()
        number = int(named[-1].name) + 1 if named else 1
        checksums = _checksums(unfinished)
        save = Save(self.folder / f"{number:08d}", as_of, now_s, next_id, below, checksums)
        (unfinished / _ABOUT).write_text(_note(save))
        _force_to_disk(unfinished)
        unfinished.rename(save.folder)
        _force_entry(self.folder)
        for folder in named[: len(named) + 1 - KEPT]:
            shutil.rmtree(folder, ignore_errors=True)
        return save

    def confirm(self, save: Save, as_of: float) -> Save:
        """Write down that a save is all there is, also at a later time on Cloud Tasks' clock.

        Raises:
            ServiceFailedError: it cannot be written.
        """
        save = replace(save, as_of=as_of)
        fresh = self.folder / _UNFINISHED_NOTE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # The save may be the other emulator's.
            fresh.write_text(_note(save))
            _force_entry(fresh)
            fresh.replace(save.folder / _ABOUT)
        except OSError as error:
            raise ServiceFailedError(f"Datastore's save could not be confirmed: {error}") from error
        return save

    def _named(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*") if path.name.isdecimal())


def _note(save: Save) -> str:
    fields = {name: getattr(save, name) for name in _FIELDS[_FORMAT]}
    return json.dumps({"format": _FORMAT} | fields, indent=1)


def _read(folder: Path) -> Save:
    try:
        note = json.loads((folder / _ABOUT).read_text())
        save = Save(folder, **{name: note[name] for name in _FIELDS[note["format"]]})
        changed = dict(save.checksums).items() ^ _checksums(folder).items()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, f"its note cannot be read ({error!r})") from error
    if changed:
        raise _damaged(folder, f"{min(changed)[0]} is not as it was written")
    return save


def _damaged(folder: Path, damage: str) -> ServiceFailedError:
    return ServiceFailedError(
        f"What was saved of Datastore in {folder} is damaged: {damage}. "
        "Move that folder away to start from the save before it."
    )


def _checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != _ABOUT
    }


def _force_to_disk(folder: Path) -> None:
    """Return when everything in a folder would survive a power cut."""
    for path in folder.rglob("*"):
        _force_entry(path)
    _force_entry(folder)


def _force_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
