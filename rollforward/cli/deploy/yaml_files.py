"""queue.yaml, cron.yaml and index.yaml: written when absent, else added to at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rollforward.cli.command import yaml_module
from rollforward.cli.deploy.checks import SWEEP_URL, Finding
from rollforward.cli.deploy.needs import Needs
from rollforward.cli.deploy.project_files import BadFileError, ProjectFiles
from rollforward.cli.deploy.queue_settings import suggested
from rollforward.tasks.pattern import CompositeIndex

_CRON_HEAD = """\
# One sweep for all patterns: it finds the work that a crash has left.
cron:
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


def cron_yaml(service: str = "") -> str:
    """Return the file with the sweep of a service; "": of the default one."""
    return _CRON_HEAD + sweep_entries([SWEEP_URL], service)


def sweep_entries(urls: Iterable[str], service: str) -> str:
    """Return the entries of cron.yaml for some sweeps of a service; "": the default one."""
    target = f"    target: {service}\n" if service else ""
    return "".join(
        f"  - description: sweep\n    url: {url}\n    schedule: every 1 minutes\n{target}"
        for url in urls
    )


def index_entries(indexes: Sequence[CompositeIndex]) -> str:
    """Return the entries of index.yaml for some composite indexes."""
    lines = []
    for index in indexes:
        lines.append(f"  - kind: {index.kind}")
        lines += ["    ancestor: yes"] if index.has_ancestor else []
        lines.append("    properties:")
        for name, direction in index.properties:
            lines += [f"      - name: {name}", f"        direction: {direction}"]
    return "\n".join(lines) + "\n"


def write(needs: Needs, files: ProjectFiles, findings: Iterable[Finding]) -> list[str]:
    """Write files and entries that are absent; return a sentence for each file that was written.

    Lines that exist stay as they are: entries are added at the end.
    """
    added = [finding for finding in findings if finding.is_added]
    by_id = {finding.id for finding in added}
    subjects = {
        file: [finding.subject for finding in added if finding.file == file]
        for file in ("queue.yaml", "cron.yaml", "index.yaml")
    }
    written = []
    if "queue-file-missing" in by_id:
        files.queue_yaml.write_text(queue_yaml(needs), encoding="utf-8")
        written.append("Wrote queue.yaml.")
    elif names := subjects["queue.yaml"]:
        written.append(_append(files.queue_yaml, "queue", queue_entries(needs, names), names))
    if "cron-file-missing" in by_id:
        files.cron_yaml.write_text(cron_yaml(files.service), encoding="utf-8")
        written.append("Wrote cron.yaml.")
    elif urls := subjects["cron.yaml"]:
        entries = sweep_entries(urls, files.service)
        written.append(_append(files.cron_yaml, "cron", entries, urls))
    if kinds := subjects["index.yaml"]:
        entries = index_entries([index for index in needs.indexes if index.kind in kinds])
        if files.index_yaml.is_file():
            written.append(_append(files.index_yaml, "indexes", entries, kinds))
        else:
            files.index_yaml.write_text(_INDEX_HEAD + entries, encoding="utf-8")
            written.append("Wrote index.yaml.")
    return written


def _append(path: Path, key: str, entries: str, names: Sequence[str]) -> str:
    """Add entries at the end of a file's list, if that is what its end is.

    Raises:
        BadFileError: it is not; the text has the entries to add by hand.
    """
    yaml, text = yaml_module(), path.read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    indent = _indent(text)
    lines = "".join(
        f"{line.replace('  ', indent, 1) if line.startswith('  ') else line}\n"
        for line in entries.splitlines()
    )
    head = text if text.endswith("\n") or not text else f"{text}\n"
    if not content.get(key):  # An empty list, or none yet.
        head = re.sub(rf"^{key}: *(\[\])? *\n", "", head, flags=re.MULTILINE) + f"{key}:\n"
    extended = f"{head}\n{lines}" if content.get(key) else head + lines
    expected = {**content, key: [*(content.get(key) or []), *yaml.safe_load(f"x:\n{entries}")["x"]]}
    try:
        is_added = yaml.safe_load(extended) == expected
    except yaml.YAMLError:
        is_added = False
    if not is_added:
        raise BadFileError(
            f"{path.name} does not end with its list {key!r}: add these lines to it yourself.\n"
            f"{entries}"
        )
    path.write_text(extended, encoding="utf-8")
    return f"Added {', '.join(names)} at the end of {path.name}."


def _indent(text: str) -> str:
    """Return the indentation of the entries of a file's list."""
    match = re.search(r"^( *)- ", text, flags=re.MULTILINE)
    return match[1] if match else "  "


def _purpose(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_SHOWN_PATHS])
    unnamed = len(paths) - _SHOWN_PATHS
    return f"For {shown}" + (f" and {unnamed} more." if unnamed > 0 else ".")
