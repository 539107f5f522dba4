"""queue.yaml, cron.yaml and index.yaml for an app that has none of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rollforward.cli.deploy.needs import Needs
from rollforward.cli.deploy.queue_settings import suggested

SWEEP_URL = "/cron/sweep"
CRON_YAML = f"""\
# One sweep for all patterns: it finds what a crash has left.
cron:
  - description: sweep
    url: {SWEEP_URL}
    schedule: every 1 minutes
"""
_QUEUE_HEAD = """\
# One queue per kind of work, so that a flood of one cannot delay another.
#
# No queue has a task_retry_limit or a task_age_limit: a task that a queue drops leaves no trace.
# The app keeps a task that fails too often as a dead task instead.
queue:
"""
_INDEX_HEAD = """\
# The composite indexes that the patterns of this app need. Add those of your own queries.
indexes:
"""
_SHOWN_PATHS = 3


def queue_yaml(needs: Needs) -> str:
    """Return the file for every queue that an app needs."""
    return _QUEUE_HEAD + queue_entries(needs, sorted(needs.queues))


def queue_entries(needs: Needs, names: Iterable[str]) -> str:
    """Return the entries of some of the queues."""
    entries = []
    for name in names:
        queue = suggested(name, needs.patterns_of(name))
        entries.append("\n".join(queue.yaml_lines(_purpose(needs.queues[name]))))
    return "\n\n".join(entries) + "\n"


def index_yaml(indexes: Sequence[Mapping[str, object]]) -> str:
    """Return the file for some composite indexes."""
    lines = []
    for index in indexes:
        lines.append(f"  - kind: {index['kind']}")
        lines.append("    properties:")
        for name, direction in index["properties"]:  # type: ignore[attr-defined]
            lines.append(f"      - name: {name}")
            lines.append(f"        direction: {direction}")
    return _INDEX_HEAD + "\n".join(lines) + "\n"


def _purpose(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_SHOWN_PATHS])
    unnamed = len(paths) - _SHOWN_PATHS
    return f"For {shown}" + (f" and {unnamed} more." if unnamed > 0 else ".")
