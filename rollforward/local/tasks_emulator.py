"""`rollforward tasks-emulator`: Cloud Tasks alone, for an app of any kind, until Ctrl-C.

It serves every project and location. Nothing else of the local platform runs.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sqlite3
from pathlib import Path

from rollforward.local.cloudtasks.delivery.app_engine import DEFAULT_SERVICE
from rollforward.local.cloudtasks.dispatch_yaml import DispatchYamlError
from rollforward.local.cloudtasks.emulator import Emulator, EmulatorSettings
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.protocol.names import Place
from rollforward.local.cloudtasks.queue_yaml import QueueYamlError
from rollforward.local.cloudtasks.store.database import StoreInUseError
from rollforward.local.cloudtasks.store.unwritable import truncate
from rollforward.local.errors import PlatformError, PortTakenError, UsageError
from rollforward.local.options import service_urls
from rollforward.loopback import is_loopback

STORE = "tasks.sqlite"


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes; return the exit code.

    Raises:
        PlatformError: a queue, a file or the port cannot be used.
    """
    handler = logging.StreamHandler()
    handler.addFilter(truncate)
    layout = "%(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=layout, handlers=[handler])
    return asyncio.run(_serve(_emulator(options), options))


def _emulator(options: argparse.Namespace) -> Emulator:
    data: Path | None = options.data
    if data is not None and data.exists() and not data.is_dir():
        raise UsageError(f"--data must be a folder, got {data}")
    _check_parent(options)
    for name in ("app_url", "functions_url", "issuer"):
        if (url := getattr(options, name)) and not url.startswith(("http://", "https://")):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} must begin with http:// or https://, got {url!r}")
    settings = EmulatorSettings(
        host=options.host,
        port=options.port,
        beyond_loopback=True,
        every_place=True,
        project=options.project,
        location=options.location,
        queues=options.queue,
        queue_yaml=options.queue_yaml,
        store_path=data / STORE if data is not None else None,
        app_url=options.app_url,
        service_urls=service_urls(options.service),
        dispatch_yaml=options.dispatch_yaml,
        functions_url=options.functions_url,
    )
    try:
        return Emulator(settings)
    except Refused as refused:
        raise UsageError(f"--queue: {refused.message}") from refused
    except (QueueYamlError, DispatchYamlError, StoreInUseError) as error:
        raise PlatformError(str(error)) from error
    except (OSError, sqlite3.Error) as error:
        raise PlatformError(f"--data {data} cannot be used: {error}") from error


def _check_parent(options: argparse.Namespace) -> None:
    """Refuse a place that no queue can have.

    Raises:
        UsageError: --project or --location is malformed.
    """
    place = Place(options.project, options.location)
    try:
        Place("any", "any", is_open=True).check_parent(place.parent)
    except Refused:
        text = f"--project and --location must name a place, got {place.parent!r}"
        raise UsageError(text) from None


async def _serve(emulator: Emulator, options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as running:
        running.push_async_callback(emulator.stop)
        try:
            await emulator.listen()
        except RuntimeError as error:
            text = f"The emulator {error}. Choose another --port or --host."
            raise PortTakenError(text) from error
        url = f"http://{_reachable(emulator)}"
        emulator.engine.tokens.issuer = options.issuer or url
        pages_url = await _start_console(emulator, options, running)
        await emulator.dispatch()
        _announce(emulator, url, pages_url, is_json=options.json)
        await stop.wait()
    return 0


async def _start_console(
    emulator: Emulator, options: argparse.Namespace, running: contextlib.AsyncExitStack
) -> str:
    """Start the console of the emulator if it is wanted; return its URL, or "".

    Raises:
        PortTakenError: another program listens there.
    """
    if options.ui is None:
        return ""
    # Its pages take longer to load than the emulator.
    from rollforward.local.console.tasks_console import StandaloneEmulator, TasksConsole

    console = TasksConsole(StandaloneEmulator(emulator, options.project), options.ui)
    try:
        await console.start()
    except PortTakenError as error:
        raise PortTakenError(f"--ui cannot listen on port {options.ui}.") from error
    running.push_async_callback(console.stop)
    return console.url


def _reachable(emulator: Emulator) -> str:
    """Return an address by which this machine reaches the emulator, as host:port."""
    if emulator.host in ("0.0.0.0", "::"):  # nosec B104  Read, not bound.
        return f"localhost:{emulator.port}"
    return emulator.grpc_address


def _services(emulator: Emulator) -> dict[str, str]:
    """Return the addresses of all services that an option or a rule names."""
    app = emulator.engine.app
    names = {DEFAULT_SERVICE: app.url} | dict(app.service_urls)
    default = names[DEFAULT_SERVICE]
    return names | {rule.service: names.get(rule.service, default) for rule in app.rules}


def _announce(emulator: Emulator, url: str, pages_url: str, *, is_json: bool) -> None:
    queues = [queue.name for queue in emulator.engine.queues.all()]
    issuer = emulator.engine.tokens.issuer
    if is_json:
        address = url.removeprefix("http://")
        shown = {"address": address, "issuer": issuer, "queues": queues, "ui": pages_url}
        print(json.dumps(shown), flush=True)
        return
    print(f"\n  Cloud Tasks   {url}   gRPC and REST, every project and location")
    for name in queues:
        print(f"  queue         {name}")
    for name, service_url in _services(emulator).items():
        print(f"  service       {name}   {service_url}")
    if pages_url:
        print(f"  pages         {pages_url}")
    print(f"  OIDC issuer   {issuer}")
    print(f"  gcloud        CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDTASKS={url}/ \\")
    print("                CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true gcloud tasks queues list")
    if not is_loopback(emulator.host):
        print("\n  Whoever reaches this port may read and change everything: no caller is checked.")
    print("\n  (Ctrl-C stops it)\n", flush=True)
