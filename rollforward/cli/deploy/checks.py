"""The findings of a check: each is something to do, in a sentence that says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rollforward.cli.deploy.needs import Needs
from rollforward.cli.deploy.project_files import BadFileError, ProjectFiles, Sweep
from rollforward.cli.deploy.queue_settings import UNLIMITED, QueueSettings

SWEEP_URL = "/cron/sweep"
_PATTERN_SWEEP = re.compile("/cron/[^/]+/sweep")
# After an outage each partition of the outbox gets a task that drains it.
OUTBOX_LEAST_PER_S = 5
OUTBOX_LEAST_CONCURRENT = 2
# A task that waits so long after an outage looks lost.
MAX_BACKOFF_S = 600
# The work of a lost instance waits for the sweep.
MAX_INTERVAL_S = 1_800


@dataclass(frozen=True)
class Finding:
    """Something to do.

    Attributes:
        id: Its kind, which stays the same in later versions.
        file: The file to change; for `--live`, the service.
        subject: The queue, the URL or the kind of entities.
        is_added: Whether `--write` writes it.
    """

    id: str
    file: str
    subject: str
    text: str
    is_added: bool = False


def check(needs: Needs, files: ProjectFiles) -> list[Finding]:
    """Compare the needs of an app with its files."""
    return [*_queues(needs, files), *_sweeps(needs, files), *_indexes(needs, files)]


def _queues(needs: Needs, files: ProjectFiles) -> Iterator[Finding]:
    if not files.queue_yaml.is_file():
        names = ", ".join(sorted(needs.queues))
        text = f"There is no queue.yaml: write one with the queues {names}."
        yield Finding("queue-file-missing", "queue.yaml", "", text, is_added=True)
        return
    try:
        queues = {queue.name: queue for queue in files.queues()}
    except BadFileError as error:
        yield Finding("queue-file-invalid", "queue.yaml", "", f"{error}")
        return
    for name, paths in sorted(needs.queues.items()):
        if name not in queues:
            text = (
                f"queue.yaml lacks the queue {name}, to which {paths[0]} goes: add `- name: "
                f"{name}` with its rate."
            )
            yield Finding("queue-missing", "queue.yaml", name, text, is_added=True)
    for queue in queues.values():
        yield from queue_findings(queue, files, "queue.yaml", is_needed=queue.name in needs.queues)


def queue_findings(
    queue: QueueSettings, files: ProjectFiles, file: str, *, is_needed: bool
) -> Iterator[Finding]:
    """Yield the findings about one queue, of queue.yaml or of a project.

    One that no task of the app goes to may be as its owner wants it.
    """
    if not is_needed:
        return

    def finding(kind: str, text: str) -> Finding:
        return Finding(kind, file, queue.name, f"{file}: the queue {queue.name} {text}")

    if queue.max_attempts != UNLIMITED:
        yield finding(
            "queue-attempts-limited",
            f"drops a task after {queue.max_attempts} attempts, which leaves no trace: remove its "
            "task_retry_limit (gcloud: --max-attempts=unlimited). The app keeps dead tasks.",
        )
    if queue.max_age_s:
        yield finding(
            "queue-age-limited",
            f"drops a task after {queue.max_age_s:g} s, which leaves no trace: remove its "
            "task_age_limit (gcloud: --max-retry-duration=0s).",
        )
    if queue.is_paused:
        yield finding("queue-paused", "delivers nothing: give it a rate above 0, or resume it.")
    if queue.max_backoff_s > MAX_BACKOFF_S:
        yield finding(
            "queue-backoff-high",
            f"waits up to {queue.max_backoff_s:g} s between two attempts, long after an outage: "
            f"set max_backoff_seconds to {MAX_BACKOFF_S} or less, for example 5.",
        )
    if queue.max_concurrent > files.capacity:
        yield finding(
            "queue-concurrency-high",
            f"delivers {queue.max_concurrent} tasks at a time, and {files.max_instances} instances "
            f"have {files.capacity} threads: set max_concurrent_requests to {files.capacity} or "
            "less.",
        )
    if queue.name == "outbox" and not queue.is_paused:
        yield from _outbox_rates(queue, finding)


def _outbox_rates(
    queue: QueueSettings, finding: Callable[[str, str], Finding]
) -> Iterator[Finding]:
    if queue.rate_per_s < OUTBOX_LEAST_PER_S:
        yield finding(
            "queue-rate-low",
            f"delivers {queue.rate_per_s:g} tasks a second, so committed tasks wait after an "
            "outage: set its rate to 20/s.",
        )
    if queue.max_concurrent < OUTBOX_LEAST_CONCURRENT:
        yield finding(
            "queue-concurrency-low",
            "drains one partition at a time, so committed tasks wait after an outage: set "
            "max_concurrent_requests to 4.",
        )


def _sweeps(needs: Needs, files: ProjectFiles) -> Iterator[Finding]:
    if not files.cron_yaml.is_file():
        text = f"There is no cron.yaml: write one that calls {SWEEP_URL} every 1 minutes."
        yield Finding("cron-file-missing", "cron.yaml", SWEEP_URL, text, is_added=True)
        return
    try:
        sweeps = files.sweeps()
    except BadFileError as error:
        yield Finding("cron-file-invalid", "cron.yaml", "", f"{error}")
        return
    yield from _missing_sweeps(needs, {sweep.url for sweep in sweeps})
    for sweep in sweeps:
        yield from _sweep_findings(needs, sweep, sweeps)
        yield from _elsewhere(files, sweep)


def _missing_sweeps(needs: Needs, urls: set[str]) -> Iterator[Finding]:
    if SWEEP_URL in urls:
        return
    unswept = [name for name in needs.swept if f"/cron/{name}/sweep" not in urls]
    if len(unswept) == len(needs.swept):
        text = f"cron.yaml has no sweep: add an entry with url: {SWEEP_URL} every 1 minutes."
        yield Finding("sweep-missing", "cron.yaml", SWEEP_URL, text, is_added=True)
        return
    for name in unswept:
        url = f"/cron/{name}/sweep"
        text = f"cron.yaml does not sweep {name}: add an entry with url: {url} every 1 minutes."
        yield Finding("sweep-missing", "cron.yaml", url, text, is_added=True)


def _sweep_findings(needs: Needs, sweep: Sweep, sweeps: Sequence[Sweep]) -> Iterator[Finding]:
    name = sweep.url.removeprefix("/cron/").removesuffix("/sweep")
    is_own = sweep.url == SWEEP_URL
    if not is_own and sweep.url != f"/cron/{name}/sweep":
        return  # It calls the app's own code.
    if not is_own and name not in needs.swept:
        text = f"cron.yaml sweeps {name}, which the app does not use: remove {sweep.url}."
        yield Finding("sweep-unused", "cron.yaml", sweep.url, text)
    elif not is_own and any(other.url == SWEEP_URL for other in sweeps):
        text = f"cron.yaml sweeps {name} twice, by {SWEEP_URL}, too: remove {sweep.url}."
        yield Finding("sweep-twice", "cron.yaml", sweep.url, text)
    if sweep.interval_s > MAX_INTERVAL_S and (is_own or name in needs.waking):
        text = (
            f"cron.yaml calls {sweep.url} every {sweep.interval_s / 60:g} minutes, and the work of "
            "a lost instance waits for it: set its schedule to every 1 minutes."
        )
        yield Finding("sweep-rare", "cron.yaml", sweep.url, text)


def _elsewhere(files: ProjectFiles, sweep: Sweep) -> Iterator[Finding]:
    """Yield that an entry calls the default service, where this app's work is not known."""
    is_own = sweep.url == SWEEP_URL or _PATTERN_SWEEP.fullmatch(sweep.url)
    if is_own and files.service and not sweep.target:
        text = (
            f"cron.yaml calls {sweep.url} of the default service, and app.yaml is of "
            f"{files.service}: add `target: {files.service}` to the entry."
        )
        yield Finding("sweep-elsewhere", "cron.yaml", sweep.url, text)


def _indexes(needs: Needs, files: ProjectFiles) -> Iterator[Finding]:
    try:
        present = files.indexes()
    except BadFileError as error:
        yield Finding("index-file-invalid", "index.yaml", "", f"{error}")
        return
    for index in needs.indexes:
        if index not in present:
            columns = ", ".join(f"{name} {direction}" for name, direction in index.properties)
            text = f"index.yaml lacks an index of the kind {index.kind} on {columns}: add it."
            yield Finding("index-missing", "index.yaml", index.kind, text, is_added=True)
