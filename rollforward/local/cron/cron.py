"""Cron: reads cron.yaml and calls the app when a job is due.

1. Each entry has its next run; one loop sleeps until the first of them.
2. A due job is a GET on its URL with `X-Appengine-Cron: true`, as App Engine sends
   it, and an OIDC token, as Cloud Scheduler does: the app decides whom to trust.
3. A job that is still running is not started again.
4. Runs that were missed (the laptop slept) count as one.

Nothing here is kept across restarts. A missed run costs one period: jobs
are sweeps, and the next one finds the same work.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import aiohttp
import yaml

from rollforward.local.cron import schedules
from rollforward.local.errors import PlatformError

SHOWN_RUNS = 3
_DEADLINE_S = 600.0
_MAX_SLEEP_S = 30.0  # the wall clock may jump meanwhile
_KEPT_TEXT = 2000
_READ_BYTES = 64 * 1024
_USER_AGENT = "AppEngine-Google; (+http://code.google.com/appengine)"

log = logging.getLogger(__name__)

TokenMinter = Callable[[str], str]
"""Returns an OIDC token for an audience."""


class BadCronFileError(PlatformError):
    """cron.yaml is not what App Engine would take."""


class UnknownJobError(PlatformError):
    """The cron job does not exist."""


@dataclass(frozen=True)
class Run:
    """One run of a job, ended."""

    started: datetime
    duration_ms: float
    status: int | None  # None: no answer came
    said: str
    by_hand: bool

    @property
    def ok(self) -> bool:
        """True if App Engine would call it a success."""
        return self.status is not None and 200 <= self.status < 300


@dataclass
class Job:
    """One entry of cron.yaml and how it has been going."""

    name: str
    url: str
    description: str
    schedule_text: str
    zone: str
    schedule: schedules.Schedule
    next_run: datetime
    paused: bool = False
    running: bool = False
    last_run: Run | None = None
    runs: int = 0
    failures: int = 0

    def next_runs(self, count: int = SHOWN_RUNS) -> list[datetime]:
        """Return the next runs; none while paused."""
        if self.paused:
            return []
        return [self.next_run, *schedules.next_runs(self.schedule, self.next_run, count - 1)]


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Cron:
    """All jobs of one cron.yaml, and the loop that runs them.

    Args:
        app_url: Where the app listens, for example http://127.0.0.1:8080
        mint: Makes the OIDC token; None sends none.
        now: The clock.
    """

    app_url: str
    mint: TokenMinter | None = None
    now: Callable[[], datetime] = _utc_now
    jobs: dict[str, Job] = field(default_factory=dict)
    note: str = ""  # Why there are no jobs, or not those of the file as it is now.
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _loop_task: "asyncio.Task[None] | None" = None
    _running: "set[asyncio.Task[Run]]" = field(default_factory=set)
    _session: aiohttp.ClientSession | None = None

    def load(self, path: Path) -> None:
        """Read cron.yaml, again if need be: jobs that stay keep their state.

        Raises:
            BadCronFileError, schedules.BadScheduleError: nothing has changed.
        """
        fresh = {job.name: job for job in read_jobs(path, self.now())}
        for name, job in fresh.items():
            old_job = self.jobs.get(name)
            if old_job is not None and old_job.schedule == job.schedule:
                fresh[name] = old_job
                old_job.url, old_job.description = job.url, job.description
        self.jobs = fresh
        self._changed.set()

    def try_load(self, path: Path) -> str:
        """Read cron.yaml; return the problem with it, "" for none."""
        self.note = ""
        try:
            self.load(path)
        except PlatformError as error:
            self.note = str(error)
        return self.note

    async def open(self) -> None:
        """Become able to run jobs, by tick() or by hand."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_DEADLINE_S))

    async def start(self) -> None:
        """Begin to run jobs as they come due."""
        await self.open()
        self._loop_task = asyncio.create_task(self._loop(), name="cron")

    async def stop(self) -> None:
        """Stop the loop and drop the runs in progress."""
        tasks = [task for task in (self._loop_task, *self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def tick(self) -> list[Run]:
        """Run every job that is due now and return how they went."""
        due = self._take_due()
        return list(await asyncio.gather(*(self._fire(job, by_hand=False) for job in due)))

    async def run_now(self, name: str) -> Run:
        """Run one job at once, paused or not; its schedule stays as it is.

        Raises:
            UnknownJobError: the job does not exist.
        """
        return await self._fire(self.job(name), by_hand=True)

    def pause(self, name: str, paused: bool = True) -> None:
        """Pause or resume one job; resumed, it waits for its next regular run.

        Raises:
            UnknownJobError: the job does not exist.
        """
        job = self.job(name)
        if job.paused and not paused:
            job.next_run = job.schedule.next_after(self.now())
        job.paused = paused
        self._changed.set()

    def job(self, name: str) -> Job:
        """Return one job.

        Raises:
            UnknownJobError: the job does not exist.
        """
        try:
            return self.jobs[name]
        except KeyError:
            raise UnknownJobError(f"There is no cron job {name!r}.") from None

    async def _loop(self) -> None:
        while True:
            for job in self._take_due():
                task = asyncio.create_task(self._fire(job, by_hand=False))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._sleep_s())

    def _sleep_s(self) -> float:
        waiting = [job.next_run for job in self.jobs.values() if not job.paused]
        until_first_s = (min(waiting) - self.now()).total_seconds() if waiting else _MAX_SLEEP_S
        return min(max(until_first_s, 0.0), _MAX_SLEEP_S)

    def _take_due(self) -> list[Job]:
        """Return the jobs that are due, each with its next run set after now."""
        now, due = self.now(), []
        for job in self.jobs.values():
            next_run = job.schedule.next_after(now)
            if job.paused or job.next_run > now:
                job.next_run = min(job.next_run, next_run)  # The clock may have been put back.
                continue
            job.next_run = next_run
            if not job.running:
                due.append(job)
        return due

    async def _fire(self, job: Job, *, by_hand: bool) -> Run:
        job.running = True
        started, clock = self.now(), time.monotonic()
        try:
            status, answer = await self.request(job.url)
        finally:
            job.running = False
        duration_ms = (time.monotonic() - clock) * 1000
        job.last_run = Run(started, duration_ms, status, answer, by_hand)
        job.runs += 1
        job.failures += not job.last_run.ok
        level = logging.INFO if job.last_run.ok else logging.WARNING
        answer = "no response" if status is None else status
        log.log(level, "%s: %s in %.0f ms", job.url, answer, duration_ms, extra={"is_quiet": True})
        return job.last_run

    async def request(
        self, url: str, *, method: str = "GET", max_bytes: int = _KEPT_TEXT
    ) -> tuple[int | None, str]:
        """Ask the app as the scheduler does; return the status and the start of the text."""
        if self._session is None:
            raise PlatformError("Cron is not started.")
        headers = {"X-Appengine-Cron": "true", "User-Agent": _USER_AGENT}
        if self.mint is not None:
            headers["Authorization"] = f"Bearer {self.mint(self.app_url)}"
        try:
            async with self._session.request(
                method, self.app_url + url, headers=headers, allow_redirects=False
            ) as response:
                body = bytearray()
                async for chunk in response.content.iter_chunked(_READ_BYTES):
                    body += chunk
                    if len(body) >= max_bytes:
                        break
                return response.status, bytes(body[:max_bytes]).decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return None, f"{type(error).__name__}: {error}"


def read_jobs(path: Path, now: datetime) -> list[Job]:
    """Return the jobs of a cron.yaml.

    Raises:
        BadCronFileError: the file or an entry is malformed; says which.
        schedules.BadScheduleError: a schedule is not understood.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:  # Latin-1, or the 31st of a short month.
        raise BadCronFileError(f"{path.name} cannot be read: {error}") from error
    entries = (loaded or {}).get("cron") if isinstance(loaded or {}, dict) else None
    if entries is None and not loaded:
        return []
    if not isinstance(entries, list):
        raise BadCronFileError(f"{path.name} must hold a list called cron.")
    jobs: list[Job] = []
    for entry in entries:
        jobs.append(_job(path, entry, now, {job.name for job in jobs}))
    return jobs


def _job(path: Path, entry: Any, now: datetime, names: set[str]) -> Job:
    if not isinstance(entry, dict):
        raise BadCronFileError(f"{path.name}: each entry has url and schedule, not {entry!r}.")
    url, text = entry.get("url"), entry.get("schedule")
    if not isinstance(url, str) or not url.startswith("/") or not isinstance(text, str):
        raise BadCronFileError(f"{path.name}: url (from /) and schedule are needed in {entry!r}.")
    zone = _zone(path, entry.get("timezone", "UTC"))
    schedule = schedules.parse(text, zone)
    name = url
    while name in names:  # two schedules for one URL
        name += "'"
    first_run = schedule.next_after(now)
    return Job(name, url, str(entry.get("description", "")), text, zone.key, schedule, first_run)


def _zone(path: Path, key: Any) -> ZoneInfo:
    try:
        return ZoneInfo(str(key))
    except (KeyError, ValueError, OSError) as error:
        raise BadCronFileError(f"{path.name}: there is no timezone {key!r}.") from error
