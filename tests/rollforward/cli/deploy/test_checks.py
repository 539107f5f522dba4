"""Findings: each lack of a project's files is one, in a sentence that says what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollforward as rf
from rollforward.cli.deploy.checks import check
from rollforward.cli.deploy.loading import registry_of
from rollforward.cli.deploy.needs import needs_of
from rollforward.cli.deploy.project_files import ProjectFiles
from tests.infra.stack import ROOT
from tests.rollforward.cli.deploy.projects import (
    CRON_YAML,
    QUEUE_YAML,
    ids,
    registry,
    write_project,
)

pytestmark = pytest.mark.fast

NEEDS = needs_of(registry())


def test_the_needs_of_an_app_are_the_queues_of_its_tasks_and_the_patterns_that_it_uses() -> None:
    """The outbox and operations are in every app; a pattern without parts is not swept."""
    assert set(NEEDS.queues) == {"default", "mails", "outbox"}
    assert NEEDS.queues["mails"] == ["/tasks/mail"]
    assert {"outbox", "operations"} <= set(NEEDS.swept)
    assert {"streams", "pull-queues", "counters"} & set(NEEDS.swept) == set()
    assert "outbox" in NEEDS.waking
    assert "operations" not in NEEDS.waking
    assert "pull-queues" in needs_of(rf.Registry(rf.PullQueue("calls"))).swept


def test_a_project_that_has_it_all_has_no_findings(tmp_path: Path) -> None:
    write_project(tmp_path)

    assert check(NEEDS, ProjectFiles(tmp_path)) == []


@pytest.mark.parametrize(
    ("target", "folder"),
    [("pipelines.registry:APP", ""), ("docs.examples.shop:serve", "docs/examples/shop")],
)
def test_the_apps_of_this_repository_have_no_findings(target: str, folder: str) -> None:
    """Their YAML files are what the check asks for."""
    needs = needs_of(registry_of(target, ROOT))

    assert check(needs, ProjectFiles(ROOT / folder)) == []


def test_files_that_are_absent_are_findings_that_write_mends(tmp_path: Path) -> None:
    findings = check(NEEDS, ProjectFiles(tmp_path))

    assert ids(findings) == [("queue-file-missing", ""), ("cron-file-missing", "/cron/sweep")]
    assert "default, mails, outbox" in findings[0].text
    assert all(finding.is_added for finding in findings)


QUEUES: dict[str, tuple[str, str, str]] = {
    "queue-missing": ("- name: mails", "- name: letters", "to which /tasks/mail goes: add"),
    "queue-attempts-limited": (
        "rate: 5/s\n  retry_parameters: {",
        "rate: 5/s\n  retry_parameters: {task_retry_limit: 6, ",
        "after 7 attempts, which leaves no trace: remove its task_retry_limit",
    ),
    "queue-age-limited": (
        "rate: 5/s\n  retry_parameters: {",
        "rate: 5/s\n  retry_parameters: {task_age_limit: 2d, ",
        "after 172800 s, which leaves no trace: remove its task_age_limit",
    ),
    "queue-paused": ("rate: 1/s", "rate: 0", "delivers nothing: give it a rate above 0"),
    "queue-backoff-high": (
        "rate: 5/s\n  retry_parameters: {max_backoff_seconds: 5}",
        "rate: 5/s",
        "waits up to 3600 s between two attempts",
    ),
    "queue-concurrency-high": (
        "max_concurrent_requests: 8",
        "max_concurrent_requests: 129",
        "4 instances have 128 threads: set max_concurrent_requests to 128",
    ),
    "queue-rate-low": ("rate: 20/s", "rate: 4/s", "set its rate to 20/s"),
    "queue-concurrency-low": (
        "max_concurrent_requests: 4",
        "max_concurrent_requests: 1",
        "set max_concurrent_requests to 4",
    ),
}


@pytest.mark.parametrize("kind", QUEUES)
def test_a_queue_that_is_absent_or_loses_or_delays_tasks_is_a_finding(
    tmp_path: Path, kind: str
) -> None:
    before, after, text = QUEUES[kind]
    assert QUEUE_YAML.count(before) == 1
    write_project(tmp_path, queues=QUEUE_YAML.replace(before, after))

    (finding,) = check(NEEDS, ProjectFiles(tmp_path))

    assert finding.id == kind
    assert finding.file == "queue.yaml"
    assert text in finding.text
    assert finding.is_added == (kind == "queue-missing")


def test_a_queue_of_no_task_may_be_paused(tmp_path: Path) -> None:
    more = "- name: old\n  rate: 0\n  retry_parameters: {max_backoff_seconds: 5}\n"
    more += "  max_concurrent_requests: 1\n"
    write_project(tmp_path, queues=QUEUE_YAML + more)

    assert check(NEEDS, ProjectFiles(tmp_path)) == []


@pytest.mark.parametrize(
    ("files", "capacity"),
    [
        ({}, 128),
        ({"Dockerfile": 'CMD ["gunicorn", "--threads", "8"]'}, 32),
        ({"app.yaml": "entrypoint: gunicorn --threads 16\n"}, 64),
        ({"app.yaml": "entrypoint: x --threads=4\nautomatic_scaling: {max_instances: 2}\n"}, 8),
        ({"app.yaml": "automatic_scaling: {max_instances: many}\n"}, 128),
    ],
)
def test_the_threads_of_all_instances_are_read_from_the_files_that_start_them(
    tmp_path: Path, files: dict[str, str], capacity: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    assert ProjectFiles(tmp_path).capacity == capacity


SWEEPS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "none": ("cron: []\n", [("sweep-missing", "/cron/sweep")]),
    "of other URLs only": (
        "cron:\n- {url: /reports, schedule: every 24 hours}\n",
        [("sweep-missing", "/cron/sweep")],
    ),
    "of one pattern": (
        "cron:\n- {url: /cron/outbox/sweep, schedule: every 1 minutes}\n",
        [("sweep-missing", f"/cron/{name}/sweep") for name in NEEDS.swept if name != "outbox"],
    ),
    "of an unused pattern": (
        CRON_YAML + "- {url: /cron/streams/sweep, schedule: every 1 minutes}\n",
        [("sweep-unused", "/cron/streams/sweep")],
    ),
    "of an unknown pattern": (
        CRON_YAML + "- {url: /cron/dreams/sweep, schedule: every 1 minutes}\n",
        [("sweep-unused", "/cron/dreams/sweep")],
    ),
    "twice": (
        CRON_YAML + "- {url: /cron/outbox/sweep, schedule: every 1 minutes}\n",
        [("sweep-twice", "/cron/outbox/sweep")],
    ),
    "rarely": (
        "cron:\n- {url: /cron/sweep, schedule: every 2 hours}\n",
        [("sweep-rare", "/cron/sweep")],
    ),
    "every half hour": ("cron:\n- {url: /cron/sweep, schedule: every 30 minutes}\n", []),
    "not readable": ("cron: 5\n", [("cron-file-invalid", "")]),
    "without a schedule": (
        "cron:\n- {url: /cron/sweep, schedule: now}\n",
        [("cron-file-invalid", "")],
    ),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_that_is_absent_or_unused_or_doubled_or_rare_is_a_finding(
    tmp_path: Path, name: str
) -> None:
    text, expected = SWEEPS[name]
    write_project(tmp_path, cron=text)

    assert ids(check(NEEDS, ProjectFiles(tmp_path))) == expected


TARGETS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "the default service": ("service: default\n", CRON_YAML, []),
    "no service": ("runtime: python313\n", CRON_YAML, []),
    "its service": ("service: shop\n", CRON_YAML + "  target: shop\n", []),
    "another service": ("service: shop\n", CRON_YAML, [("sweep-elsewhere", "/cron/sweep")]),
    "another service by the app's own code": (
        "service: shop\n",
        CRON_YAML + "  target: shop\n- {url: /reports, schedule: every 24 hours}\n",
        [],
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_sweep_of_another_service_is_a_finding(tmp_path: Path, name: str) -> None:
    """An entry without a target calls the default service, and this app is never swept."""
    app_yaml, text, expected = TARGETS[name]
    write_project(tmp_path, cron=text)
    (tmp_path / "app.yaml").write_text(app_yaml)

    assert ids(check(NEEDS, ProjectFiles(tmp_path))) == expected


@pytest.mark.parametrize("text", ["queue: 5", "queue:\n- rate: 5/s\n", "queue:\n- title: x", "["])
def test_a_file_that_cannot_be_read_is_a_finding_with_its_place(tmp_path: Path, text: str) -> None:
    write_project(tmp_path, queues=text)

    (finding,) = check(NEEDS, ProjectFiles(tmp_path))

    assert finding.id == "queue-file-invalid"
    assert "queue.yaml" in finding.text
    assert not finding.is_added


def test_an_index_is_needed_by_an_app_that_uses_its_pattern(tmp_path: Path) -> None:
    """And not by one that does not; an index of the file in another order is another one."""
    write_project(tmp_path)
    with_lamps = needs_of(registry("a lamp"))
    (finding,) = check(with_lamps, ProjectFiles(tmp_path))
    entry = "indexes:\n- kind: Lamp\n  properties:\n  - name: shelf\n  - {name: cents%s}\n"
    (tmp_path / "index.yaml").write_text(entry % "")
    ascending = check(with_lamps, ProjectFiles(tmp_path))
    (tmp_path / "index.yaml").write_text(entry % ", direction: desc")

    assert (finding.id, finding.subject, finding.is_added) == ("index-missing", "Lamp", True)
    assert "on shelf asc, cents desc" in finding.text
    assert ids(ascending) == [("index-missing", "Lamp")]
    assert check(with_lamps, ProjectFiles(tmp_path)) == []
    assert check(NEEDS, ProjectFiles(tmp_path)) == []


@pytest.mark.parametrize(
    "text", ["indexes: 5", "[1]", "[5]", "indexes:\n- kind: x", "{", "a: 2026-11-31"]
)
def test_an_index_file_that_cannot_be_read_is_a_finding(tmp_path: Path, text: str) -> None:
    write_project(tmp_path)
    (tmp_path / "index.yaml").write_text(text)

    assert ids(check(NEEDS, ProjectFiles(tmp_path))) == [("index-file-invalid", "")]


def test_a_queue_of_the_apps_own_may_be_as_its_owner_wants_it(tmp_path: Path) -> None:
    """No task of ours goes there: a limit of its attempts is no finding, so a CI can pass."""
    write_project(tmp_path)
    own = """- name: of-our-own
  rate: 5/s
  retry_parameters:
    task_retry_limit: 3
"""
    (tmp_path / "queue.yaml").write_text(QUEUE_YAML + own)

    assert check(NEEDS, ProjectFiles(tmp_path)) == []
