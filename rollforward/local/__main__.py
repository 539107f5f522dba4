"""`python -m rollforward.local`, as `rollforward run`: the whole stack until Ctrl-C."""

import asyncio
import itertools
import json
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rollforward.local import settings, target
from rollforward.local.cloudtasks.store.unwritable import truncate
from rollforward.local.errors import PlatformError
from rollforward.local.logs.terminal import Terminal, TerminalHandler
from rollforward.local.service_table import OFF
from rollforward.local.settings import Settings
from rollforward.local.stack import Stack

_STATES = {"running": "✓", "external": "↗", "off": "–", "stopped": "✕", "silent": "✕"}


def main(arguments: Sequence[str]) -> int:
    """Run by a command line until a signal comes; return the exit code."""
    return run(lambda: settings.read(arguments))


def run(choose: Callable[[], Settings]) -> int:
    """Run until a signal comes; return the exit code."""
    try:
        return asyncio.run(_run(choose()))
    except (PlatformError, ExceptionGroup) as error:
        failures = _known(error)
        if not failures:
            raise
        print("\n" + "\n".join(map(str, failures)), file=sys.stderr)
        return max(failure.exit_code for failure in failures)


async def _run(chosen: Settings) -> int:
    terminal = Terminal(verbose=chosen.verbose)
    handler = TerminalHandler(terminal)
    handler.addFilter(truncate)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    served = target.find(chosen.target, chosen.root, queues=chosen.queues, cron=chosen.cron)
    stack = Stack(chosen, served, terminal)
    asked = itertools.count(1)

    def on_signal() -> None:
        """Stop. A second signal hurries it; a third one leaves everything as it is."""
        stop.set()
        {1: lambda: None, 2: stack.stop_waiting}.get(next(asked), stack.abandon)()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.create_task(stack.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # Ctrl-C while starting
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    try:
        await starting
        _announce(stack)
        await stopping
    finally:
        stopping.cancel()
        if not chosen.json:
            terminal.write("\nStopping … (Ctrl-C again hurries)\n")
        await stack.stop()
    return 0


def _announce(stack: Stack) -> None:
    if stack.settings.json:
        print(json.dumps(asdict(stack.addresses())), flush=True)
        return
    rows = [
        (_STATES[service.state], service.name, service.url or service.address, service.note)
        for service in stack.services()
    ]
    widths = [max(len(row[column]) for row in rows) for column in (1, 2)]
    print()
    if stack.target.text != target.DEFAULT:
        print(f"  The app is {stack.target.text}.\n")
    for icon, name, address, note in rows:
        print(f"  {icon} {name:<{widths[0]}}  {address:<{widths[1]}}  {note}".rstrip())
    if any(service.state == OFF for service in stack.services()):
        print("\n  What is off is optional; `rollforward doctor` says how to get it.")
    logs = ", logs in .dev/logs/" if stack.logs else ""
    print(f"\n  Open {stack.app.url}    (Ctrl-C stops everything{logs})\n", flush=True)


def _known(error: Exception) -> list[PlatformError]:
    """Return our own errors, also those inside nested groups."""
    if isinstance(error, PlatformError):
        return [error]
    if isinstance(error, ExceptionGroup):
        return [failure for inner in error.exceptions for failure in _known(inner)]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
