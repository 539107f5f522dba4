"""The environment of the app."""

from rollforward.local import settings
from rollforward.local.app.sdk import CONSOLE_URL, ENDPOINTS
from rollforward.local.environment import Addresses, of_app
from tests.rollforward.local.test_settings import ZERO_PORTS

CONSOLE = "http://127.0.0.1:8000"
AT = Addresses("http://127.0.0.1:8080", CONSOLE, *["127.0.0.1:1"] * 4, "demo-local")


def test_an_exporter_of_the_apps_own_is_not_sent_to_the_console(tmp_path, monkeypatch):
    """It may speak gRPC, which the console does not."""
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)

    env = of_app(AT, settings.read([], ZERO_PORTS, tmp_path), "secret", tmp_path)

    assert env[CONSOLE_URL] == CONSOLE
    assert not set(ENDPOINTS) & set(env)
