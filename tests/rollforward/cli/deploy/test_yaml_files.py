"""Writing: files that are absent, entries at the end of the others, and no line changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rollforward.cli.deploy import yaml_files
from rollforward.cli.deploy.checks import check
from rollforward.cli.deploy.needs import needs_of
from rollforward.cli.deploy.project_files import BadFileError, ProjectFiles
from rollforward.cli.deploy.queue_settings import suggested
from tests.infra.stack import ROOT
from tests.rollforward.cli.deploy.projects import (
    CRON_YAML,
    QUEUE_YAML,
    registry,
    write_project,
)

pytestmark = pytest.mark.fast

NEEDS = needs_of(registry())


def write(folder: Path, needs: object = NEEDS) -> list[str]:
    files = ProjectFiles(folder)
    return yaml_files.write(needs, files, check(needs, files))  # type: ignore[arg-type]


def test_an_empty_folder_gets_files_that_pass_the_check(tmp_path: Path) -> None:
    needs = needs_of(registry("a lamp"))

    assert write(tmp_path, needs) == ["Wrote queue.yaml.", "Wrote cron.yaml.", "Wrote index.yaml."]
    assert check(needs, ProjectFiles(tmp_path)) == []
    assert write(tmp_path, needs) == []
    queues = yaml.safe_load((tmp_path / "queue.yaml").read_text())["queue"]
    assert [queue["name"] for queue in queues] == ["default", "mails", "outbox"]
    assert "# For /tasks/mail." in (tmp_path / "queue.yaml").read_text()


STARTS = {
    "list without indent": QUEUE_YAML.partition("- name: outbox")[0],
    "indented list": "queue:\n    - name: default\n      rate: 5/s\n"
    "      retry_parameters: {max_backoff_seconds: 5}\n      max_concurrent_requests: 8",
    "empty list": "# Ours.\nqueue: []\n",
    "empty list after another field": "total_storage_limit: 5M\nqueue:\n",
    "empty file": "",
    "only comments": "# Ours.\n",
}


@pytest.mark.parametrize("name", STARTS)
def test_missing_queues_are_added_at_the_end_and_every_line_stays(
    tmp_path: Path, name: str
) -> None:
    write_project(tmp_path, queues=STARTS[name])
    before = yaml.safe_load(STARTS[name]) or {}

    (sentence,) = write(tmp_path)

    text = (tmp_path / "queue.yaml").read_text()
    assert sentence.endswith("mails, outbox at the end of queue.yaml.")
    kept = [line for line in STARTS[name].splitlines() if not line.startswith("queue:")]
    assert text.splitlines()[: len(kept)] == kept or text.startswith(STARTS[name])
    assert yaml.safe_load(text)["queue"][: len(before.get("queue") or [])] == (
        before.get("queue") or []
    )
    assert check(NEEDS, ProjectFiles(tmp_path)) == []


@pytest.mark.parametrize(("name", "pattern"), [("outbox", "outbox"), ("streams", "streams")])
def test_the_queue_of_a_pattern_is_suggested_as_the_demo_has_it(name: str, pattern: str) -> None:
    """With the limits that were measured there."""
    [measured] = [queue for queue in ProjectFiles(ROOT).queues() if queue.name == name]

    assert suggested(name, frozenset({pattern})) == measured


def test_a_file_that_does_not_end_with_its_list_is_left_alone(tmp_path: Path) -> None:
    """The lines to add are in the text instead."""
    text = QUEUE_YAML.partition("- name: mails")[0] + "total_storage_limit: 5M\n"
    write_project(tmp_path, queues=text)

    with pytest.raises(BadFileError, match=r"(?s)add these lines to it yourself.*name: mails"):
        write(tmp_path)

    assert (tmp_path / "queue.yaml").read_text() == text


def test_limits_of_a_users_queue_are_a_finding_and_are_not_changed(tmp_path: Path) -> None:
    text = QUEUE_YAML.replace("{max_backoff_seconds: 5}", "{task_retry_limit: 3}", 1)
    write_project(tmp_path, queues=text)

    assert write(tmp_path) == []
    assert (tmp_path / "queue.yaml").read_text() == text


def test_a_missing_sweep_is_added_behind_those_of_the_file(tmp_path: Path) -> None:
    """The one sweep of all, or those that are missing beside others."""
    write_project(tmp_path, cron="cron:\n  - url: /reports\n    schedule: every 24 hours\n")
    write(tmp_path)
    one = [entry["url"] for entry in yaml.safe_load((tmp_path / "cron.yaml").read_text())["cron"]]
    text = CRON_YAML.replace("/cron/sweep", "/cron/outbox/sweep")
    write_project(tmp_path, cron=text)
    (sentence,) = write(tmp_path)

    assert one == ["/reports", "/cron/sweep"]
    assert (tmp_path / "cron.yaml").read_text().startswith(text)
    assert "/cron/operations/sweep" in sentence
    assert check(NEEDS, ProjectFiles(tmp_path)) == []


@pytest.mark.parametrize("cron", [None, "cron:\n- url: /reports\n  schedule: every 24 hours\n"])
def test_a_sweep_that_is_written_calls_the_service_of_the_app(
    tmp_path: Path, cron: str | None
) -> None:
    write_project(tmp_path, cron=cron)
    (tmp_path / "app.yaml").write_text("service: shop\n")

    write(tmp_path)

    entries = yaml.safe_load((tmp_path / "cron.yaml").read_text())["cron"]
    assert (entries[-1]["url"], entries[-1]["target"]) == ("/cron/sweep", "shop")
    assert check(NEEDS, ProjectFiles(tmp_path)) == []


def test_a_missing_index_is_added_behind_those_of_the_file(tmp_path: Path) -> None:
    write_project(tmp_path)
    text = "indexes:\n- kind: Own\n  properties:\n  - name: a\n  - name: b\n"
    (tmp_path / "index.yaml").write_text(text)
    needs = needs_of(registry("a lamp"))

    assert write(tmp_path, needs) == ["Added Lamp at the end of index.yaml."]
    assert (tmp_path / "index.yaml").read_text().startswith(text)
    assert check(needs, ProjectFiles(tmp_path)) == []
