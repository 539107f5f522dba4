"""`rollforward deploy --check`: what an app's deployment needs, and what its files lack of it."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rollforward.cli.command import Command
from rollforward.cli.deploy import checks, gcloud, yaml_files
from rollforward.cli.deploy.checks import Finding
from rollforward.cli.deploy.loading import registry_of
from rollforward.cli.deploy.needs import Needs, needs_of
from rollforward.cli.deploy.project_files import BadFileError, ProjectFiles
from rollforward.cli.deploy.queue_settings import QueueSettings
from rollforward.cli.errors import WrongUsageError
from rollforward.local import target as targets

_EPILOG = (
    "Loading the app opens nothing: its tasks are read from what rf.serve(...) was given. Nothing "
    "is deployed; the printed commands do that. --json prints {target, ok, findings: [{id, file, "
    "subject, text, is_added}], written: [...], commands: {platform: [...]}}."
)
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9-]+")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the target and the options of a check."""
    parser.add_argument(
        "target",
        nargs="?",
        default="",
        metavar="module:callable",
        help="the Flask app, a function that returns it, or a Registry (default: as of `run`)",
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the app with its files; needed"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write files that are absent, and add missing entries at the end of the others",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="compare with the project, too, by gcloud; needs --project and --region",
    )
    parser.add_argument("--project", default="", help="the project of the printed commands")
    parser.add_argument("--region", default="", help="its region")
    parser.add_argument(
        "--service", default="", help="the name of the Cloud Run service (this folder's name)"
    )
    parser.add_argument(
        "--platform",
        choices=gcloud.PLATFORMS,
        help="print the commands of one platform only (those with an app.yaml or a Dockerfile)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Check, and write if asked to; return 1 if there is something to do."""
    if not options.check:
        raise WrongUsageError(
            "Nothing is deployed by this command: rollforward deploy --check prints the commands."
        )
    if options.live and not (options.project and options.region):
        raise WrongUsageError("--live needs --project and --region.")
    root = Path.cwd()
    target = options.target or targets.default(root)
    files = ProjectFiles(_folder(target, root))
    needs = needs_of(registry_of(target, root))
    findings = checks.check(needs, files)
    written = yaml_files.write(needs, files, findings) if options.write else []
    if written:
        findings = checks.check(needs, files)
    platforms = [options.platform] if options.platform else files.platforms()
    place, queues = _place(options, root), _queues(files)
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


def _place(options: argparse.Namespace, root: Path) -> gcloud.Place:
    usual = gcloud.Place()
    name = _NOT_IN_A_NAME.sub("-", root.name.lower()).strip("-")
    return gcloud.Place(
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


COMMAND = Command(
    "deploy",
    "check queues, sweeps and indexes; print the commands that deploy",
    "Derive from the app's tasks and patterns which queues, sweeps and indexes have to exist, and "
    "compare them with queue.yaml, cron.yaml and index.yaml. Each finding says what to write. "
    "Exit code 1: there is something to do.",
    add_options,
    run,
    _EPILOG,
)
