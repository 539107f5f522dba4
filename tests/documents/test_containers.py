"""The image of the emulator, and compose.yaml: each name in them exists, and each option is one."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from typing import Any

import pytest
import yaml

from handlers.settings import DemoSettings
from rollforward.cli import parser
from rollforward.flask.settings import LOCAL
from tests.infra.documents import ROOT, text_of

FOLDER = "operations/emulator"
DOCKERFILE = f"{FOLDER}/Dockerfile"
COMPOSE: dict[str, Any] = yaml.safe_load(text_of(f"{FOLDER}/compose.yaml"))
SERVICES: dict[str, Any] = COMPOSE["services"]
# The ports on which the images listen that are not built here, by their own documentation.
USUAL_PORTS = {"memcached": 11211}


def instructions(dockerfile: str) -> dict[str, list[str]]:
    """Return the arguments of a Dockerfile's instructions, by their names."""
    lines = re.sub(r"^#.*\n", "", text_of(dockerfile), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in filter(None, lines.splitlines()):
        name, _, rest = line.partition(" ")
        found.setdefault(name, []).append(rest.strip())
    return found


def entrypoint() -> list[str]:
    """Return the command of the emulator's image."""
    [command] = instructions(DOCKERFILE)["ENTRYPOINT"]
    words: list[str] = json.loads(command)
    return words


def options_of(*more: str) -> Any:
    """Return the options that the command of the image is given."""
    program, *arguments = entrypoint()
    assert program == "rollforward"
    return parser().parse_args([*arguments, *more])


def port_of(service: str) -> int:
    """Return the port on which a service listens, as its image or its command says."""
    if service == "tasks":
        return int(options_of(*SERVICES["tasks"]["command"]).port)
    if service == "app":
        return int(dict(e.split("=") for e in instructions("Dockerfile")["ENV"])["PORT"])
    if service in USUAL_PORTS:
        return USUAL_PORTS[service]
    [listening] = [word for word in SERVICES[service]["command"] if "--host-port" in word]
    return int(listening.rpartition(":")[2])


def test_the_image_copies_what_is_there() -> None:
    """And its context holds these files, and nothing but them."""
    copied = [
        name
        for line in instructions(DOCKERFILE)["COPY"]
        if "--from" not in line
        for name in shlex.split(line)[:-1]
    ]
    shown = [
        line.removeprefix("!")
        for line in text_of(f"{DOCKERFILE}.dockerignore").splitlines()
        if line.startswith("!")
    ]

    assert copied == shown
    assert all((ROOT / name).exists() for name in copied)
    project = text_of("pyproject.toml")
    assert all(name in copied for name in ("README.md", "LICENSE", "NOTICE") if name in project)


def test_the_image_listens_beyond_itself_and_says_where() -> None:
    """Its port is the one that is exposed and probed."""
    options, said = options_of(), instructions(DOCKERFILE)

    assert options.host == "0.0.0.0"
    assert said["EXPOSE"] == [str(options.port)]
    [probe] = said["HEALTHCHECK"]
    program = json.loads(probe.partition("CMD")[2])
    assert f"http://127.0.0.1:{options.port}/.well-known/openid-configuration" in program[-1]
    assert said["FROM"][-1] == instructions("Dockerfile")["FROM"][0]


def test_the_command_of_the_composed_emulator_has_no_unknown_option() -> None:
    """Its files and folders are mounted, and its URLs name services."""
    tasks = SERVICES["tasks"]
    options = options_of(*tasks["command"])
    mounts = dict(volume.split(":")[:2] for volume in tasks["volumes"])

    assert mounts == {"../../queue.yaml": str(options.queue_yaml), "tasks": str(options.data)}
    assert (ROOT / FOLDER / "../../queue.yaml").is_file()
    assert [*COMPOSE["volumes"]] == ["tasks"]
    assert options.app_url == SERVICES["app"]["environment"]["TASKS_URL"]
    assert options.issuer == SERVICES["app"]["environment"]["TASKS_ISSUER"]
    assert f"install -d -o emulator {options.data}" in instructions(DOCKERFILE)["RUN"][-1]


def test_builds_find_their_files() -> None:
    """Contexts are given from the folder of compose.yaml."""
    for service in SERVICES.values():
        build = service.get("build", {})
        build = {"context": build} if isinstance(build, str) else build
        if build:
            context = (ROOT / FOLDER / build["context"]).resolve()
            assert context == ROOT
            assert (context / build.get("dockerfile", "Dockerfile")).is_file()
        else:
            assert service["image"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_addresses_name_a_service_and_its_port(name: str) -> None:
    """What a service is told, what it waits for, and what the laptop sees."""
    service = SERVICES[name]
    told = [str(value) for value in service.get("environment", {}).values()]
    for text in [*told, *service.get("command", [])]:
        for host, port in re.findall(r"\b([a-z]+):(\d+)", text):
            assert port_of(host) == int(port), text
    assert {*service.get("depends_on", {})} <= {*SERVICES}
    for published in service.get("ports", []):
        assert published == f"127.0.0.1:{port_of(name)}:{port_of(name)}"


def test_the_app_has_the_settings_that_it_needs() -> None:
    """It takes itself for an app on a laptop, as it does under `make run`."""
    env = {**SERVICES["app"]["environment"], "SECRET_KEY": secrets.token_hex(32)}
    documented = text_of("docs/settings.md")

    assert DemoSettings.from_environment(env).platform == LOCAL
    assert all(f"`{name}`" in documented for name in env)
