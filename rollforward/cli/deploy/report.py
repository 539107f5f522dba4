"""The check of a target: its needs, the findings, the files and the commands; printed."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rollforward.cli.deploy import checks, gcloud, yaml_files
from rollforward.cli.deploy.checks import Finding
from rollforward.cli.deploy.loading import registry_of
from rollforward.cli.deploy.needs import Needs, needs_of
from rollforward.cli.deploy.project_files import BadFileError, ProjectFiles
from rollforward.cli.deploy.queue_settings import QueueSettings
from rollforward.local import target as targets

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9-]+")


def report(options: argparse.Namespace) -> int:
    """Check, write if asked to, and print; return 1 if there is something to do."""
    root = Path.cwd()
    target = options.target or targets.default(root)
    files = ProjectFiles(_folder(target, root))
    needs = needs_of(registry_of(target, root))
    findings = checks.check(needs, files)
    written = yaml_files.write(needs, files, findings) if options.write else []
    if written:
        findings = checks.check(needs, files)
    platforms = [options.platform] if options.platform else files.platforms()
    place, queues = _deployment(options, root), _queues(files)
    if options.live:
        for platform in platforms[-1:]:
            findings += gcloud.live_findings(platform, needs, queues, files, place)
    commands = {
        platform: gcloud.commands(platform, needs, queues, files, place) for platform in platforms
    }
    _print(options, target, findings, written, commands, needs)
    return 1 if findings else 0


def _folder(target: str, root: Path) -> Path:
    """Return the folder of the files: the package of the target if it has any, else the root."""
    package = targets.find(target, root, queues=None, cron=None).queue_yaml.parent
    return package if (package / "queue.yaml").is_file() else root


def _deployment(options: argparse.Namespace, root: Path) -> gcloud.Deployment:
    usual = gcloud.Deployment()
    # A service begins with a letter, and has at most 49 characters.
    name = _NOT_IN_A_NAME.sub("-", root.name.lower()).lstrip("-0123456789")[:49].rstrip("-")
    return gcloud.Deployment(
        options.project or usual.project,
        options.region or usual.region,
        options.service or name or usual.service,
    )


def _queues(files: ProjectFiles) -> Mapping[str, QueueSettings]:
    """Return the queues of queue.yaml by name; none if it is absent or malformed."""
    if not files.queue_yaml.is_file():
        return {}
    try:
        return {queue.name: queue for queue in files.queues()}
    except BadFileError:
        return {}


def _print(
    options: argparse.Namespace,
    target: str,
    findings: Sequence[Finding],
    written: Sequence[str],
    commands: Mapping[str, Sequence[str]],
    needs: Needs,
) -> None:
    if options.json:
        result = {
            "target": target,
            "ok": not findings,
            "findings": [asdict(finding) for finding in findings],
            "written": list(written),
            "commands": commands,
        }
        print(json.dumps(result))
        return
    tasks = sum(len(paths) for paths in needs.queues.values())
    print(f"{target}: {tasks} tasks, {len(needs.queues)} queues, {len(needs.swept)} patterns.")
    for sentence in written:
        print(f"  + {sentence}")
    for finding in findings:
        print(f"  ✕ {finding.text}")
    if any(finding.is_added for finding in findings):
        print("  --write adds what is missing; it changes no line that exists.")
    if not findings:
        print("  ✓ queue.yaml, cron.yaml and index.yaml have what the app needs.")
    for platform, lines in commands.items():
        print(f"\n# {platform}")
        print("\n".join(lines))
