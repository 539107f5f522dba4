"""A health check for each service of a run, with advice for when it fails."""

from rollforward.local import watch
from rollforward.local.app.server import READY_PATH, AppServer
from rollforward.local.backing import Backing
from rollforward.local.cloudtasks.emulator import Emulator
from rollforward.local.saves.autosave import SAVE_EVERY_S
from rollforward.local.services.datastore import DatastoreEmulator
from rollforward.local.services.datastore_command import PROGRAM
from rollforward.local.watch import Probe

_HANGS = "Stop with Ctrl-C and start again"


def probes_of(app: AppServer, tasks: Emulator, backing: Backing) -> list[Probe]:
    """Return how the services are asked that we know how to ask."""
    probes = [_app(app), _cloud_tasks(tasks)]
    mail, datastore, memcached = backing.mail, backing.datastore, backing.memcached
    probes.append(Probe("Mail", lambda: watch.ping_mail(mail.address), f"{_HANGS}."))
    if datastore is not None and datastore.product != PROGRAM:
        probes.append(Probe("Datastore", datastore.admin.ping, _datastore_hint(datastore)))
    if memcached is not None:
        advice = "Nothing to do: the app works without a cache, in smaller batches."
        probes.append(Probe("memcached", lambda: watch.ping_memcached(memcached.address), advice))
    return probes


def _app(app: AppServer) -> Probe:
    log = " .dev/logs/app.log says more." if app.log_dir else ""
    advice = "All its threads wait, perhaps for a service." + log
    return Probe("App", lambda: watch.ping_app(app.port, READY_PATH), advice)


def _cloud_tasks(tasks: Emulator) -> Probe:
    queue = tasks.engine.place.queue_name("default")
    return Probe(
        "Cloud Tasks",
        lambda: watch.ping_cloud_tasks(tasks.grpc_address, queue),
        f"{_HANGS}: it keeps its tasks.",
    )


def _datastore_hint(datastore: DatastoreEmulator) -> str:
    if not datastore.is_kept:
        return f"{_HANGS}: it keeps nothing."
    return f"{_HANGS}: it goes back to its last save, {SAVE_EVERY_S:.0f} s or a little older."
