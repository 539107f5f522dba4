"""Keeps the app running, and fresh: it is reloaded when a file is saved.

It watches the current folder and the folders of code in it, and the target's own folder. If
the app ends on its own, it is started again after a pause that grows, or at once when a file is
saved.
"""

import asyncio
import contextlib
import importlib.util
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import watchfiles

from rollforward.local.app.server import AppServer

_PAUSES_S = (0.5, 1, 2, 5, 10, 30)
_HEALTHY_S = 30.0  # an app that lived so long starts over with the shortest pause
_CODE = {".py", ".html", ".txt", ".xml"}
# Folders of this repository whose files are no part of a running app, and large ones.
_UNWATCHED = {"benchmarks", "docs", "node_modules", "tests"}

log = logging.getLogger(__name__)


class AppKeeper:
    """Keeps an app running and, if wanted, fresh."""

    def __init__(
        self,
        app: AppServer,
        report: Callable[[str], None],
        *,
        reload: bool,
        folder: Path | None = None,
    ) -> None:
        """Describe the keeper.

        Args:
            app: The app to keep running.
            report: Called with a line for the person at the terminal.
            reload: Whether to watch the files.
            folder: The folder of the target; None is the current folder.
        """
        self.app = app
        self.folder = folder or app.root
        self.report = report
        self.reload = reload
        # More files to watch, and what to do; it returns whether the app is to be loaded again.
        self.on_file: dict[Path, Callable[[], bool]] = {}
        self._watched: set[Path] = set()
        self._saved = asyncio.Event()
        self._is_stale = False  # The app has to load what was saved.
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to watch."""
        self._tasks = [asyncio.create_task(self._revive(), name="app-revive")]
        if not self.reload:
            return
        root = self.app.root
        self._watch([root], recursive=False)
        self._watch(path for path in root.iterdir() if _is_code_folder_of(root, path))
        if not any(self.folder.is_relative_to(path) for path in self._watched - {root}):
            self._watch([self.folder], recursive=(self.folder / "__init__.py").exists())
        self._watch({path.parent for path in self.on_file}, recursive=False)

    async def stop(self) -> None:
        """Stop watching; the app stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watch(self, folders: Iterable[Path], *, recursive: bool = True) -> None:
        """Watch folders, those left out that are watched already."""
        fresh = {*folders} - self._watched
        if fresh:
            self._watched |= fresh
            self._tasks.append(asyncio.create_task(self._follow(fresh, recursive), name="watch"))

    async def _follow(self, folders: set[Path], recursive: bool) -> None:
        try:
            await self._take_changes(folders, recursive)
        except OSError as error:  # The system watches no more files, above all.
            names = ", ".join(sorted(map(str, folders)))
            self.report(f"saves in {names} are not seen: {error}. Start this again after a change")

    async def _take_changes(self, folders: set[Path], recursive: bool) -> None:
        async for changes in watchfiles.awatch(*folders, recursive=recursive, step=100):
            paths = {Path(path) for _, path in changes}
            if self.app.root in folders:
                self._watched -= {path for path in paths if not path.exists()}
                self._watch(path for path in paths if _is_code_folder_of(self.app.root, path))
            try:
                self._changed(paths)
            except Exception:  # It must not end the watching.
                log.exception("Saved files were not loaded")

    def _changed(self, paths: set[Path]) -> None:
        for path in paths:
            _forget_bytecode(path)
        applied = {path for path in paths & self.on_file.keys() if self.on_file[path]()}
        saved = sorted(path.name for path in paths if path.suffix in _CODE or path in applied)
        if not saved:
            return
        self.report(f"reload: {', '.join(saved[:3])}")
        self._saved.set()
        self._is_stale = self.app.running
        self._refresh()

    def _refresh(self) -> None:
        """Reload once for all files saved while workers load the ones before.

        Each reload starts workers, and those before it end only when they have loaded.
        """
        if self._is_stale and not self.app.reports.is_loading:
            self._is_stale = False
            self.app.reload()

    async def _revive(self) -> None:
        """Start the app again whenever it has ended."""
        pauses, started = iter(_PAUSES_S), time.monotonic()
        while True:
            process = self.app.process
            if process is not None and not await asyncio.to_thread(process.wait, 1.0):
                self._refresh()
                continue
            if time.monotonic() - started > _HEALTHY_S:
                pauses = iter(_PAUSES_S)
            pause_s = next(pauses, _PAUSES_S[-1])
            reason = self.app.exit_reason
            self.report(f"the app ended: {reason}. Again in {pause_s} s, or on save")
            self._saved.clear()
            self._is_stale = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._saved.wait(), pause_s)
            self.app.restarts += 1
            started = time.monotonic()
            self.app.reload()


def _forget_bytecode(path: Path) -> None:
    """Delete what Python has compiled of a file.

    Python compares only the size and the second of a change. A file that is saved twice within a
    second could run as it was first.
    """
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _is_code_folder_of(root: Path, path: Path) -> bool:
    """Return whether a path is a folder right under the root that an app's code may lie in."""
    if path.parent != root or path.name.startswith((".", "__")) or path.name in _UNWATCHED:
        return False
    return path.is_dir() and not (path / "pyvenv.cfg").exists()
