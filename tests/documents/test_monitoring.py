"""The dashboard and the alerts name metrics that exist, and leave out none that needs an act."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from rollforward.console.pages import records
from rollforward.runtime.channel.call_failures import SICK
from rollforward.telemetry.metrics import (
    DELAY,
    DELIVERIES,
    DURATION,
    FAILED_CALLS,
    FAMILIES,
    Outcome,
    TaskMetrics,
)
from tests.infra.documents import cells, quoted, text_of

pytestmark = pytest.mark.fast

# Names that PromQL has itself, and labels: whatever else stands in an expression is a metric.
FUNCTIONS = {"max", "min", "sum", "rate", "increase", "deriv", "histogram_quantile"}
WORDS = {"by", "and", "on", "or", "unless"}


def known() -> set[str]:
    """Return the names of the samples that /metrics has."""
    names = {name for row in cells("docs/reference/gauges.md")[1:] for name in quoted(row[0])}
    for family in (DELAY, DURATION):
        names.remove(family.name)
        names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
    return names


def metrics_in(expression: str) -> set[str]:
    """Return the metrics of an expression of PromQL."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\bby \([^)]*\)|\[[^\]]*\]|\{[^}]*\}", " ", bare)
    return set(re.findall(r"[a-z_]+[a-z]", bare)) - FUNCTIONS - WORDS


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(text_of("operations/alerts.yaml"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads(text_of("operations/grafana.json"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def policies() -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(text_of("operations/cloud-monitoring.yaml"))
    return [document for document in documents if document]


def expressions() -> dict[str, list[str]]:
    """Return the expressions of each file."""
    conditions = [condition for policy in policies() for condition in policy["conditions"]]
    language = "conditionPrometheusQueryLanguage"
    return {
        "alerts": [rule["expr"] for rule in rules()],
        "grafana": [target["expr"] for panel in panels() for target in panel["targets"]],
        "policies": [
            condition[language]["query"] for condition in conditions if language in condition
        ],
    }


def test_an_expression_is_taken_apart() -> None:
    """The check itself finds what it looks for."""
    assert metrics_in('sum by (le, task) (rate(a_bucket{task=~"x_y"}[10m])) > 2 and b_c == 0') == {
        "a_bucket",
        "b_c",
    }


@pytest.mark.parametrize("file", ["alerts", "grafana", "policies"])
def test_they_name_metrics_that_exist(file: str) -> None:
    """A rule on a name that nobody exports never fires."""
    named = {name for text in expressions()[file] for name in metrics_in(text)}

    assert named
    assert named - known() == set()


@pytest.mark.parametrize("file", ["alerts", "grafana"])
def test_they_leave_out_no_metric(file: str) -> None:
    """Of a histogram the buckets are enough."""
    named = {name for text in expressions()[file] for name in metrics_in(text)}
    parts = {f"{family.name}_{part}" for family in FAMILIES for part in ("sum", "count")}

    assert known() - parts - named == set()


@pytest.mark.parametrize("file", ["alerts", "grafana", "policies"])
def test_their_labels_exist(file: str) -> None:
    """By which they sum and select, as far as deliveries are concerned."""
    metrics = TaskMetrics(instance="i")
    metrics.note("/tasks/a", "q", Outcome.DONE, delay_s=1, duration_s=1)
    metrics.note_failed_call(("Datastore", "Commit", "UNAVAILABLE"))
    labels = {label for line in metrics.lines() for label in re.findall(r'(\w+)="', line)}
    for expression in expressions()[file]:
        if "task_" not in expression and FAILED_CALLS.name not in expression:
            continue
        used = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression)
                for label in by.split(",")}  # fmt: skip
        used |= set(re.findall(r"(\w+)=~?\"", expression))
        assert used <= labels, expression


def test_the_console_marks_a_gauge_where_its_alert_begins() -> None:
    """The page Lag has the numbers of the alert rules, of one gauge each."""
    pattern = r"max(?: by \([^)]*\) )?\((\w+)\) > ([0-9]+)(?: and .*)?"
    found = [re.fullmatch(pattern, " ".join(rule["expr"].split())) for rule in rules()]
    above = {match[1]: float(match[2]) for match in found if match}

    assert len(above) > 20
    above.pop("patterns_unread")  # It is of /metrics alone: the page fails instead.
    assert above == records.ALERT_ABOVE


def test_their_outcomes_exist() -> None:
    """Each is one that a delivery may have."""
    texts = " ".join(text for part in expressions().values() for text in part)
    outcomes = set(re.findall(r'outcome="(\w+)"', texts))

    assert {"failed", "dead", "unavailable"} <= outcomes
    assert outcomes <= {outcome.value for outcome in Outcome}
    assert DELIVERIES.name in texts


def test_their_status_codes_exist() -> None:
    """The alert has those of a sick service, as the console has."""
    texts = " ".join(expressions()["alerts"])
    codes = set(re.findall(r'code=~"([A-Z_|]+)"', texts))

    assert {code for text in codes for code in text.split("|")} == SICK


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    """Once each, with a severity."""
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")
    assert all(policy["documentation"]["content"].endswith(".") for policy in policies())


def test_the_dashboard_is_whole() -> None:
    """Panels have ids and places of their own, and one data source that its reader chooses."""
    board = json.loads(text_of("operations/grafana.json"))
    ids = [panel["id"] for panel in board["panels"]]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert len(places) == len(set(places))
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
