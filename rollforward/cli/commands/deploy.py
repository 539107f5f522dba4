"""`rollforward deploy --check`: what an app's deployment needs, and what its files lack of it."""

from __future__ import annotations

import argparse

from rollforward.cli.command import Command, yaml_module
from rollforward.cli.errors import WrongUsageError

PLATFORMS = ("app-engine", "cloud-run")
_EPILOG = (
    "Loading the app opens nothing: its tasks are read from what rf.serve(...) was given. Nothing "
    "is deployed; the printed commands do that. --json prints {target, ok, findings: [{id, file, "
    "subject, text, is_added}], written: [...], commands: {platform: [...]}}."
)


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
        choices=PLATFORMS,
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
    yaml_module()  # The check reads YAML: what to install is said first.
    from rollforward.cli.deploy.report import report  # It loads every pattern.

    return report(options)


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
