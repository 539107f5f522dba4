"""The faults that a run of the tests has played: a remote call and a kind of fault.

The workers of `make test` are processes. What one of them has broken it tells the others by an
empty file.
"""

from __future__ import annotations

from pathlib import Path


class Met:
    """The calls that were broken by this process and by those that share a folder with it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._known: set[tuple[str, str]] = set()

    def add(self, call: str, kind: str) -> None:
        """Note that a call was broken in a way."""
        if self.folder is not None and (call, kind) not in self._known:
            self.folder.mkdir(exist_ok=True)
            (self.folder / f"{call} {kind}").touch()
        self._known.add((call, kind))

    def has(self, call: str, kind: str) -> bool:
        """Return whether a call was broken in a way."""
        if (call, kind) in self._known:
            return True
        return self.folder is not None and (self.folder / f"{call} {kind}").exists()


MET = Met()
