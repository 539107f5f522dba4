"""A registry and the files of a project, for tests of what a deployment needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import rollforward as rf
from rollforward.cli.deploy.checks import Finding
from rollforward.registry import PATTERNS
from rollforward.tasks.pattern import CompositeIndex, Pattern

INDEX = CompositeIndex("Lamp", (("shelf", "asc"), ("cents", "desc")))


@rf.task
def greet(name: str) -> None:
    """Do nothing."""


@rf.task(queue="mails")
def mail(address: str) -> None:
    """Do nothing."""


class Lamps(Pattern[str]):
    """A pattern of an app's own, whose query needs an index."""

    name = "lamps"
    takes = str
    indexes = (INDEX,)


def registry(*parts: object) -> rf.Registry:
    """Return a registry that knows the pattern of lamps, too."""
    return rf.Registry(greet, mail, *parts, patterns=[*PATTERNS, Lamps()])


QUEUE_YAML = """\
# Ours.
queue:
- name: default
  rate: 5/s
  retry_parameters: {max_backoff_seconds: 5}
  max_concurrent_requests: 8
- name: outbox
  rate: 20/s
  retry_parameters: {max_backoff_seconds: 5}
  max_concurrent_requests: 4
- name: mails
  rate: 1/s
  retry_parameters: {max_backoff_seconds: 5}
  max_concurrent_requests: 2
"""
CRON_YAML = """\
cron:
- url: /cron/sweep
  schedule: every 1 minutes
"""


def write_project(
    folder: Path, *, queues: str | None = QUEUE_YAML, cron: str | None = CRON_YAML
) -> None:
    """Write a project's files; None writes none."""
    for name, text in (("queue.yaml", queues), ("cron.yaml", cron)):
        if text is not None:
            (folder / name).write_text(text)


def ids(findings: Iterable[Finding]) -> Sequence[tuple[str, str]]:
    """Return the kinds and the subjects of findings."""
    return [(finding.id, finding.subject) for finding in findings]
