"""dispatch.yaml: which service a task of App Engine goes to."""

from pathlib import Path

import pytest
from google.cloud.tasks_v2 import AppEngineRouting

from rollforward.local.cloudtasks import dispatch_yaml
from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp, DispatchRule
from rollforward.local.cloudtasks.dispatch_yaml import DispatchYamlError

pytestmark = pytest.mark.fast

# The example of the reference, and a host of its own.
EXAMPLE = """
dispatch:
  - url: "simple-sample.appspot.com/"
    service: default
  - url: "*/mobile/*"
    service: mobile
  - url: "*/work/*"
    module: worker
  - url: "*.worker.simple-sample.appspot.com/v2only"
    service: mobile
"""
SERVICES = {"mobile": "http://mobile", "worker": "http://worker", "v2.worker": "http://two"}


def rules_of(text: str, folder: Path) -> list[DispatchRule]:
    """Return the rules of a file."""
    path = folder / "dispatch.yaml"
    path.write_text(text)
    return dispatch_yaml.read(path)


@pytest.mark.parametrize(
    ("routing", "uri", "base"),
    [
        ({}, "/", "http://app"),
        ({}, "/other", "http://app"),
        ({}, "/mobile/", "http://mobile"),
        ({}, "/mobile/a?b=/work/c", "http://mobile"),
        ({}, "/mobile", "http://app"),
        ({}, "/work/mobile/", "http://worker"),
        ({}, "/a/work/", "http://app"),
        ({}, "/_ah/work/", "http://app"),
        ({"service": "worker"}, "/other", "http://worker"),
        ({"service": "worker"}, "/mobile/a", "http://mobile"),
        ({"service": "worker", "version": "v2"}, "/other", "http://two"),
        ({"service": "worker", "version": "v2", "instance": "3"}, "/other", "http://two"),
        ({"service": "worker", "version": "v1"}, "/other", "http://worker"),
        ({"service": "worker", "version": "v2"}, "/v2only", "http://mobile"),
        ({"service": "worker"}, "/v2only", "http://worker"),
        ({"service": "unknown"}, "/other", "http://app"),
        ({"version": "v2"}, "/other", "http://app"),
    ],
)
def test_the_service_of_a_request(
    routing: dict[str, str], uri: str, base: str, tmp_path: Path
) -> None:
    """The first rule that matches host and path goes before the task's routing."""
    app = AppEngineApp("http://app/", SERVICES, rules_of(EXAMPLE, tmp_path))

    assert app.address(AppEngineRouting(**routing), "simple-sample", uri) == base + uri


def test_the_default_service_has_a_name() -> None:
    """An address for `default` goes before that of the app."""
    app = AppEngineApp("http://app", {"default": "http://d", "v2.default": "http://d2"})

    assert app.address(AppEngineRouting(), "p", "/") == "http://d/"
    assert app.address(AppEngineRouting(version="v2"), "p", "/") == "http://d2/"


@pytest.mark.parametrize("host", ["*", "*-a", "*.a.b", "*a.b", "a-b.c", "a"])
def test_hosts_of_rules(host: str, tmp_path: Path) -> None:
    """A star may stand at the beginning of a host."""
    [rule] = rules_of(f'dispatch: [{{url: "{host}/p*", service: a}}]', tmp_path)

    assert rule == DispatchRule(host, "/p*", "a")


@pytest.mark.parametrize("text", ["", "dispatch:", "dispatch: []"])
def test_a_file_without_rules(text: str, tmp_path: Path) -> None:
    """A file may be empty."""
    assert rules_of(text, tmp_path) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "must be a mapping"),
        ("dispatch: 2026-11-31", "day is out of range"),
        ("dispatch: 1", "must be a list of rules"),
        ("dispatch: [1]", "rule 1: must be a mapping"),
        ('dispatch: [{url: "*/a", service: a, host: b}]', "host: is not a field"),
        ('dispatch: [{url: "*/a"}]', "service: must be lower-case"),
        ('dispatch: [{url: "*/a", service: A}]', "got 'A'"),
        ("dispatch: [{service: a}]", "url: must be a host and a path"),
        ('dispatch: [{url: "host", service: a}]', "url: must be a host and a path"),
        ('dispatch: [{url: "a.*/b", service: a}]', "* at its beginning only"),
        ('dispatch: [{url: "A.b/b", service: a}]', "lower-case"),
        ('dispatch: [{url: "1.2.3.4/b", service: a}]', "got the address 1.2.3.4"),
        ('dispatch: [{url: "*/*/b", service: a}]', "* at its end only"),
        (f'dispatch: [{{url: "*/{"a" * 100}", service: a}}]', "at most 100 characters"),
        ("dispatch:" + '\n- {url: "*/a", service: a}' * 21, "at most 20 rules, got 21"),
        ("dispatch: [", "dispatch.yaml: "),
    ],
)
def test_files_that_a_deployment_refuses(text: str, words: str, tmp_path: Path) -> None:
    """The error names the file, the rule and the field."""
    with pytest.raises(DispatchYamlError) as caught:
        rules_of(text, tmp_path)

    assert words in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "dispatch.yaml"))


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(DispatchYamlError, match=r"none\.yaml"):
        dispatch_yaml.read(tmp_path / "none.yaml")
