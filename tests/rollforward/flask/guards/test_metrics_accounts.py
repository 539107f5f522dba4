"""METRICS_ACCOUNTS: who may read the metrics besides the scheduler, and by which tokens."""

from __future__ import annotations

import pytest

from rollforward.flask.settings import BadSettingsError, Settings
from tests.handlers.test_settings import ON_APP_ENGINE, ON_CLOUD_RUN

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("given", "audience"),
    [
        ({}, "https://rollforward.example"),
        ({"TASKS_AUDIENCE": "tasks"}, "tasks"),
        ({"TASKS_AUDIENCE": "tasks", "METRICS_AUDIENCE": "metrics"}, "metrics"),
    ],
)
def test_accounts_are_named_with_commas_and_their_tokens_are_for_this_app(
    given: dict[str, str], audience: str
) -> None:
    """Unless another audience is named."""
    named = {"METRICS_ACCOUNTS": "a@b.example, monitor@c.example,"}

    settings = Settings.from_environment({**ON_CLOUD_RUN, **named, **given})

    assert settings.metrics_accounts == ("a@b.example", "monitor@c.example")
    assert settings.metrics_audience == audience


@pytest.mark.parametrize("accounts", ["monitor", "a@b.example,monitor", "a@b.example;c@d.example"])
def test_what_is_no_address_is_refused(accounts: str) -> None:
    """Its token would never be taken."""
    with pytest.raises(BadSettingsError, match="METRICS_ACCOUNTS must be addresses"):
        Settings.from_environment({**ON_CLOUD_RUN, "METRICS_ACCOUNTS": accounts})


def test_accounts_need_an_audience() -> None:
    """An app on App Engine has no URL for its tasks; without accounts it needs none."""
    named = {**ON_APP_ENGINE, "METRICS_ACCOUNTS": "a@b.example"}

    with pytest.raises(BadSettingsError, match="METRICS_AUDIENCE is not set"):
        Settings.from_environment(named)
    assert Settings.from_environment(ON_APP_ENGINE).metrics_accounts == ()
    given = Settings.from_environment({**named, "METRICS_AUDIENCE": "https://shop.example"})
    assert given.metrics_audience == "https://shop.example"
