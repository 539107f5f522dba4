"""`rollforward doctor`: the programs that this machine lacks, and how to get them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rollforward.cli.command import Command, local_module


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if `rollforward run` cannot do without one."""
    doctor = local_module("doctor")
    if not options.json:
        code: int = doctor.main()
        return code
    findings = list(doctor.examine())
    ready = all(finding.ok is not False for finding in findings)
    print(json.dumps({"ready": ready, "findings": [asdict(finding) for finding in findings]}))
    return 0 if ready else 1


COMMAND = Command(
    "doctor",
    "list what this machine lacks, and the fix",
    "List the programs that `rollforward run` and the tests need, which of them are missing, and "
    "how to install those. Exit code 1: `rollforward run` cannot do without one of them.",
    add_options,
    run,
)
