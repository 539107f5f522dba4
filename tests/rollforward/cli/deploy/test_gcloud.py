"""The commands of gcloud, and the comparison with a project, by a gcloud that a test plays."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import rollforward as rf
from rollforward.cli.deploy import gcloud, report
from rollforward.cli.deploy.needs import needs_of
from rollforward.cli.deploy.project_files import ProjectFiles
from rollforward.cli.errors import CliError
from tests.rollforward.cli.deploy.projects import ids, registry, write_project

pytestmark = pytest.mark.fast

NEEDS = needs_of(registry())
AT = gcloud.Deployment("my-project", "europe-west1", "shop")

FAKE = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  "tasks queues list --project=my-project --location=europe-west1 --format=json --quiet")
    cat {folder}/queues.json ;;
  "scheduler jobs list --project=my-project --location=europe-west1 --format=json --quiet")
    cat {folder}/jobs.json ;;
  "tasks list --project=my-project --location=europe-west1 --queue=old-mails "*)
    cat {folder}/tasks.json ;;
  *) echo "ERROR: unknown: $*" >&2; exit 1 ;;
esac
"""


def deployed(name: str, **changes: Any) -> dict[str, Any]:
    """Return a queue as gcloud prints it; the service adds fields of its own."""
    rates = {"default": (5, 8), "outbox": (20, 4), "mails": (1, 2)}
    rate, concurrent = rates[name]
    queue = {
        "name": f"projects/my-project/locations/europe-west1/queues/{name}",
        "rateLimits": {
            "maxBurstSize": 10,
            "maxConcurrentDispatches": concurrent,
            "maxDispatchesPerSecond": float(rate),
        },
        "retryConfig": {
            "maxAttempts": -1,
            "maxBackoff": "5s",
            "maxDoublings": 16,
            "minBackoff": "0.100s",
        },
        "state": "RUNNING",
    }
    return queue | changes


JOB = {"state": "ENABLED", "httpTarget": {"uri": "https://shop.example/cron/sweep"}}
Live = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    """A way to compare with a project that has some queues and jobs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gcloud").write_text(FAKE.format(folder=folder, log=folder / "log"))
    (folder / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    write_project(tmp_path)
    files = ProjectFiles(tmp_path)
    queues = {queue.name: queue for queue in files.queues()}

    def compare(
        present: Any, jobs: Any, platform: str = "cloud-run", tasks: Any = ()
    ) -> list[tuple[str, str]]:
        (folder / "queues.json").write_text(json.dumps(present))
        (folder / "jobs.json").write_text(json.dumps(jobs))
        (folder / "tasks.json").write_text(json.dumps(tasks))
        findings = list(gcloud.live_findings(platform, NEEDS, queues, files, AT))
        assert all("my-project" in finding.text for finding in findings)
        return list(ids(findings))

    return compare


WHOLE = [deployed("default"), deployed("outbox"), deployed("mails")]


def test_a_project_that_has_it_all_has_no_findings(live: Live) -> None:
    assert live(WHOLE, [JOB]) == []


def test_an_empty_project_lacks_each_queue_and_the_sweep(live: Live) -> None:
    assert live([], []) == [
        ("live-queue-missing", "default"),
        ("live-queue-missing", "mails"),
        ("live-queue-missing", "outbox"),
        ("live-sweep-missing", "/cron/sweep"),
    ]


def test_on_app_engine_the_schedule_is_cron_yamls(live: Live) -> None:
    """The scheduler's list does not have its entries."""
    assert live(WHOLE, [], "app-engine") == []


LIMITS = {
    "queue-attempts-limited": {"retryConfig": {"maxAttempts": 100, "maxBackoff": "5s"}},
    "queue-age-limited": {
        "retryConfig": {"maxAttempts": -1, "maxRetryDuration": "86400s", "maxBackoff": "5s"}
    },
    "queue-paused": {"state": "PAUSED"},
}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_deployed_queue_that_loses_or_holds_tasks_is_a_finding(live: Live, kind: str) -> None:
    changed = [*WHOLE[:2], deployed("mails", **LIMITS[kind])]

    assert live(changed, [JOB]) == [(kind, "mails")]


@pytest.mark.parametrize(
    ("state", "tasks", "findings"),
    [
        ("DISABLED", [{"name": "t1"}, {"name": "t2"}], [("live-queue-left", "old-mails")]),
        ("DISABLED", [], []),
        ("RUNNING", [{"name": "t1"}], []),  # It may be another app's.
    ],
)
def test_tasks_in_a_queue_that_a_deployment_has_disabled_are_a_finding(
    live: Live, state: str, tasks: Any, findings: Any
) -> None:
    """Nothing delivers them, as queue.yaml names their queue no more."""
    left = deployed("mails", state=state) | {"name": "projects/p/locations/l/queues/old-mails"}

    assert live([*WHOLE, left], [JOB], tasks=tasks) == findings


def test_a_queue_as_the_service_makes_it_by_default_is_three_findings(live: Live) -> None:
    """It drops a task after 100 attempts, waits an hour between two, and has other rates."""
    name = {"name": "projects/p/locations/l/queues/mails", "state": "RUNNING"}

    assert live([*WHOLE[:2], name], [JOB]) == [
        ("queue-attempts-limited", "mails"),
        ("queue-backoff-high", "mails"),
        ("queue-concurrency-high", "mails"),
        ("live-queue-differs", "mails"),
    ]


@pytest.mark.parametrize(
    "jobs",
    [
        [{**JOB, "state": "PAUSED"}],
        [{"state": "ENABLED", "httpTarget": {"uri": "https://shop.example/reports"}}],
        [{"state": "ENABLED", "pubsubTarget": {}}],
        [{"httpTarget": {"uri": "https://shop.example/cron/outbox/sweep"}}],
    ],
)
def test_a_job_that_is_paused_or_calls_something_else_sweeps_nothing(live: Live, jobs: Any) -> None:
    assert live(WHOLE, jobs) == [("live-sweep-missing", "/cron/sweep")]


def test_sweeps_of_single_patterns_are_enough_when_each_has_one(live: Live) -> None:
    jobs = [
        {"httpTarget": {"uri": f"https://shop.example/cron/{name}/sweep"}} for name in NEEDS.swept
    ]

    assert live(WHOLE, jobs) == []


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'ERROR: no permission' >&2; exit 1", "failed: ERROR: no permission"),
        ("echo nothing", "printed no JSON"),
        ("echo '{}'", "failed"),
    ],
)
def test_gclouds_refusal_is_shown(live: Live, tmp_path: Path, script: str, text: str) -> None:
    (tmp_path / "bin" / "gcloud").write_text(f"#!/bin/sh\n{script}\n")

    with pytest.raises(CliError, match=text):
        live([], [])


def test_a_machine_without_gcloud_says_where_to_get_it(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(CliError, match="no gcloud on the PATH"):
        live([], [])


def printed(
    tmp_path: Path, platform: str, needs: Any = NEEDS, at: gcloud.Deployment = AT
) -> list[list[str]]:
    """Return the printed commands in words, as a shell takes them."""
    write_project(tmp_path)
    files = ProjectFiles(tmp_path)
    queues = {queue.name: queue for queue in files.queues()}
    return [shlex.split(line) for line in gcloud.commands(platform, needs, queues, files, at)]


def test_cloud_runs_commands_create_each_queue_as_the_file_has_it_and_one_sweep(
    tmp_path: Path,
) -> None:
    lines = printed(tmp_path, "cloud-run")

    queues = {words[4]: words for words in lines if words[1:4] == ["tasks", "queues", "create"]}
    assert set(queues) == {"default", "mails", "outbox"}
    assert set(queues["mails"]) >= {
        *("--max-attempts=unlimited", "--max-dispatches-per-second=1"),
        *("--max-concurrent-dispatches=2", "--max-backoff=5s", "--location=europe-west1"),
    }
    jobs = [words for words in lines if words[1:3] == ["scheduler", "jobs"]]
    assert len(jobs) == 1
    # After three minutes, the default, another sweep would begin beside a long one.
    assert {"--schedule=* * * * *", "--attempt-deadline=600s"} <= set(jobs[0])
    assert any(word.endswith(".europe-west1.run.app/cron/sweep") for word in jobs[0])
    (deploy,) = (words for words in lines if words[1:3] == ["run", "deploy"])
    assert "--allow-unauthenticated" in deploy, "the app could verify no token"
    assert {"--concurrency=32", "--timeout=600"} <= set(deploy)
    assert not any("$PROJECT" in word for words in lines for word in words)


def test_cloud_run_lets_a_request_take_as_long_as_the_longest_task(tmp_path: Path) -> None:
    """A shorter limit ends each delivery of it, until the task is dead."""
    needs = needs_of(registry(rf.Lane("builds", deadline_s=1_800)))

    (deploy,) = (w for w in printed(tmp_path, "cloud-run", needs) if w[1:3] == ["run", "deploy"])

    assert "--timeout=1800" in deploy


@pytest.mark.parametrize("service", ["a", "shop", "rollforward", "a" * 30, "a" * 49])
def test_accounts_have_ids_that_iam_takes(tmp_path: Path, service: str) -> None:
    """From 6 to 30 characters, for a service of any name; the others refer to those created."""
    lines = printed(tmp_path, "cloud-run", at=dataclasses.replace(AT, service=service))

    created = [words[4] for words in lines if words[2:4] == ["service-accounts", "create"]]
    assert len({*created}) == 2
    assert all(account.startswith(service[:20]) for account in created)
    assert all(re.fullmatch("[a-z][-a-z0-9]{4,28}[a-z0-9]", account) for account in created)
    text = " ".join(word for words in lines for word in words)
    assert {*re.findall(r"[\w-]+(?=@my-project)", text)} == {*created}


@pytest.mark.parametrize(
    ("folder", "service"),
    [("My Shop", "my-shop"), ("2048-game", "game"), ("2048", "app"), ("a" * 60, "a" * 49)],
)
def test_a_service_has_the_folders_name_as_cloud_run_takes_it(folder: str, service: str) -> None:
    options = argparse.Namespace(project="", region="", service="")

    assert report._deployment(options, Path("/work") / folder).service == service


def test_app_engines_commands_deploy_the_files(tmp_path: Path) -> None:
    """index.yaml only if a pattern needs an index."""
    lines = printed(tmp_path, "app-engine")
    indexed = printed(tmp_path, "app-engine", needs_of(registry("a lamp")))

    assert lines[-1][:3] == ["gcloud", "app", "deploy"]
    assert lines[-1][-3:] == ["app.deploy.yaml", "queue.yaml", "cron.yaml"]
    assert indexed[-1][-1] == "index.yaml"
    assert ["datastore", "indexes", "create"] in [
        words[1:4] for words in printed(tmp_path, "cloud-run", needs_of(registry("a lamp")))
    ]


def test_a_finding_has_the_fields_that_json_promises() -> None:
    from rollforward.cli.deploy.checks import Finding

    assert set(asdict(Finding("", "", "", ""))) == {"id", "file", "subject", "text", "is_added"}
