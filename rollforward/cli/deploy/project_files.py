"""The files of a project that say how it is deployed, read as far as a check needs them."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollforward.cli.command import local_module, yaml_module
from rollforward.cli.deploy.queue_settings import QueueSettings, of_message
from rollforward.cli.errors import CliError
from rollforward.tasks.pattern import CompositeIndex

THREADS = 32
MAX_INSTANCES = 4
DEFAULT_SERVICE = "default"
_THREADS = re.compile(r"--threads[\s=\",\']+(\d{1,4})\b")


class BadFileError(CliError):
    """A file cannot be read; the text says where it is wrong."""


@dataclass(frozen=True)
class Sweep:
    """An entry of cron.yaml.

    Attributes:
        interval_s: The longest time between its next runs.
        target: The service of App Engine that it calls; "": the default one.
    """

    url: str
    interval_s: float
    target: str = ""


@dataclass(frozen=True)
class ProjectFiles:
    """A folder with the files of a deployment."""

    root: Path

    @property
    def queue_yaml(self) -> Path:
        """The path of queue.yaml."""
        return self.root / "queue.yaml"

    @property
    def cron_yaml(self) -> Path:
        """The path of cron.yaml."""
        return self.root / "cron.yaml"

    @property
    def index_yaml(self) -> Path:
        """The path of index.yaml."""
        return self.root / "index.yaml"

    @property
    def capacity(self) -> int:
        """The number of requests that all instances of the app work on at a time."""
        return self.threads * self.max_instances

    @property
    def threads(self) -> int:
        """The threads of an instance: `--threads` of gunicorn in app.yaml or the Dockerfile."""
        for name in ("app.yaml", "Dockerfile"):
            if match := _THREADS.search(_text(self.root / name)):
                return int(match[1])
        return THREADS

    @property
    def max_instances(self) -> int:
        """The largest number of instances: of app.yaml, or of the printed `gcloud run deploy`."""
        scaling = _mapping(self.root / "app.yaml").get("automatic_scaling")
        count = scaling.get("max_instances") if isinstance(scaling, dict) else None
        return count if isinstance(count, int) and count > 0 else MAX_INSTANCES

    @property
    def service(self) -> str:
        """The name of the service of App Engine, by app.yaml; "": the default one, or none."""
        name = str(_mapping(self.root / "app.yaml").get("service") or "")
        return "" if name == DEFAULT_SERVICE else name

    def platforms(self) -> Sequence[str]:
        """Return the platforms that the folder has a file for; Cloud Run if it has none."""
        files = {"app-engine": "app.yaml", "cloud-run": "Dockerfile"}
        present = [name for name, file in files.items() if (self.root / file).is_file()]
        return present or ["cloud-run"]

    def queues(self) -> Sequence[QueueSettings]:
        """Return the queues of queue.yaml.

        Raises:
            BadFileError: it is malformed.
        """
        reader = local_module("cloudtasks.queue_yaml")
        names = local_module("cloudtasks.protocol.names")
        try:
            content = reader.read(self.queue_yaml, names.Place("project", "location"))
        except reader.QueueYamlError as error:
            raise BadFileError(str(error)) from error
        return [of_message(queue) for queue in content.queues]

    def sweeps(self) -> Sequence[Sweep]:
        """Return the entries of cron.yaml.

        Raises:
            BadFileError: it is malformed.
        """
        cron, schedules = local_module("cron.cron"), local_module("cron.schedules")
        now_utc = datetime.datetime.now(datetime.UTC)
        try:
            jobs = cron.read_jobs(self.cron_yaml, now_utc)
        except (cron.BadCronFileError, schedules.BadScheduleError) as error:
            raise BadFileError(str(error)) from error
        entries = _mapping(self.cron_yaml).get("cron") or []
        return [
            Sweep(job.url, _max_interval_s(job.next_runs(5)), str(entry.get("target") or ""))
            for job, entry in zip(jobs, entries, strict=True)
        ]

    def indexes(self) -> Sequence[CompositeIndex]:
        """Return the composite indexes of index.yaml.

        Raises:
            BadFileError: it is malformed.
        """
        content = _mapping(self.index_yaml)
        entries = content.get("indexes") or []
        if not isinstance(entries, list):
            raise BadFileError("index.yaml must hold a list called indexes.")
        return [_index(entry) for entry in entries]


def _max_interval_s(times: Sequence[datetime.datetime]) -> float:
    gaps = [(end - start).total_seconds() for start, end in itertools.pairwise(times)]
    return max(gaps, default=0.0)


def _index(entry: Any) -> CompositeIndex:
    properties = entry.get("properties") if isinstance(entry, dict) else None
    if not isinstance(properties, list) or not all(isinstance(part, dict) for part in properties):
        raise BadFileError(f"index.yaml: each entry has a kind and properties, not {entry!r:.80}.")
    return CompositeIndex(
        str(entry.get("kind", "")),
        tuple(
            (str(part.get("name", "")), str(part.get("direction") or "asc")) for part in properties
        ),
        has_ancestor=str(entry.get("ancestor", "no")).lower() in ("yes", "true"),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _mapping(path: Path) -> Mapping[str, Any]:
    yaml = yaml_module()
    try:
        content = yaml.safe_load(_text(path))
    except (ValueError, yaml.YAMLError) as error:
        raise BadFileError(f"{path.name} cannot be read: {error}") from error
    if content is not None and not isinstance(content, dict):
        raise BadFileError(f"{path.name} must hold a mapping.")
    return content or {}
