"""Settings: what is refused, chosen, kept and hidden."""

import io
import socket
import stat

import pytest

from rollforward.cloud_profile import BUNDLED
from rollforward.local import settings
from rollforward.local.backing import Backing
from rollforward.local.errors import NotLocalError, PlatformError, PortTakenError, UsageError
from rollforward.local.logs.terminal import Terminal


def test_a_project_that_may_be_real_is_refused(tmp_path):
    """Only demo projects run here, so that nothing can touch a real one."""
    with pytest.raises(NotLocalError, match="my-company-prod"):
        settings.read([], {"GOOGLE_CLOUD_PROJECT": "my-company-prod"}, tmp_path)


def test_another_demo_project_is_taken(tmp_path):
    """The prefix is what counts."""
    chosen = settings.read([], {"GOOGLE_CLOUD_PROJECT": "demo-mine", **ZERO_PORTS}, tmp_path)

    assert chosen.project == "demo-mine"
    assert chosen.service_account == "tasks@demo-mine.iam.gserviceaccount.com"


ZERO_PORTS = dict.fromkeys(
    ("APP_PORT", "CONSOLE_PORT", "TASKS_PORT", "DATASTORE_PORT", "MEMCACHE_PORT", "MAIL_PORT"), "0"
)


@pytest.mark.parametrize("name", sorted(ZERO_PORTS))
def test_a_taken_port_that_was_asked_for_is_an_error(tmp_path, name):
    """Asked for a port, the dev server takes that one or says who has it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        env = {**ZERO_PORTS, name: str(listener.getsockname()[1])}

        with pytest.raises(PortTakenError, match=f"{name}="):
            settings.read([], env, tmp_path)


def test_datastore_has_a_port_that_pages_know_only_if_asked_for(tmp_path):
    """Any page could wipe an emulator on a port that is the same everywhere."""
    ports = {name: port for name, port in ZERO_PORTS.items() if name != "DATASTORE_PORT"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]

    usual = settings.read([], ports, tmp_path)
    asked = settings.read([], {**ports, "DATASTORE_PORT": str(free)}, tmp_path)

    assert (usual.datastore_port, asked.datastore_port) == (0, free)


@pytest.mark.parametrize(
    ("hosts", "starts", "address", "note"),
    [
        ("", True, None, ""),
        ("cache:11211", False, "cache:11211", ""),
        ("none", False, "", "MEMCACHE_HOSTS=none"),
    ],
)
def test_an_app_may_run_without_memcached_where_it_is_installed(
    tmp_path, hosts, starts, address, note
):
    """As it is deployed: contention, batches and caches differ."""
    chosen = settings.read(["--memory"], {**ZERO_PORTS, "MEMCACHE_HOSTS": hosts}, tmp_path)

    backing = Backing(chosen, Terminal(io.StringIO()), None)
    backing.mail.store.close()

    assert (backing.memcached is not None) == starts
    assert address is None or backing.memcache_address == address
    assert backing.cache_note == note


def test_memory_keeps_nothing(tmp_path):
    """Without a .dev folder nothing is written anywhere."""
    assert settings.read(["--memory"], ZERO_PORTS, tmp_path).dev_dir is None


@pytest.mark.parametrize("port", ["http", "-1", "70000"])
def test_a_port_that_is_no_port_is_refused(tmp_path, port):
    """A typo is named with its setting."""
    with pytest.raises(PlatformError, match="APP_PORT"):
        settings.read([], {**ZERO_PORTS, "APP_PORT": port}, tmp_path)


def test_an_unknown_emulator_is_refused(tmp_path):
    """DATASTORE_EMULATOR is one of two words."""
    with pytest.raises(PlatformError, match="DATASTORE_EMULATOR"):
        settings.read([], {**ZERO_PORTS, "DATASTORE_EMULATOR": "mongo"}, tmp_path)


def test_files_that_a_full_disk_has_left_empty_are_as_if_absent(tmp_path):
    """No cookie can be signed by an empty key, and nothing answers at an empty address."""
    (tmp_path / ".dev").mkdir()
    for name in ("secret_key", "console"):
        (tmp_path / ".dev" / name).touch()

    assert len(settings.secret_key(tmp_path / ".dev")) >= 32
    assert settings.console_url({}, tmp_path) == "http://127.0.0.1:8000"


def test_the_secret_key_is_made_once_and_for_us_alone(tmp_path):
    """Sessions survive a restart, and other users cannot read the key."""
    first = settings.secret_key(tmp_path / ".dev")

    assert settings.secret_key(tmp_path / ".dev") == first
    assert len(first) >= 32
    assert stat.S_IMODE((tmp_path / ".dev" / "secret_key").stat().st_mode) == 0o600


def test_the_app_never_sees_real_credentials():
    """What could lead to a real project does not reach the app."""
    env = {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "K_SERVICE": "x", "HOME": "/home/me"}

    assert settings.without_cloud(env) == {"HOME": "/home/me", "NO_GCE_CHECK": "true"}


def test_like_cloud_is_the_profile_that_comes_along_on_the_emulator_that_locks(tmp_path):
    """As the service does; who names an emulator gets that one."""
    cloud = settings.read(["--like=cloud"], ZERO_PORTS, tmp_path)
    named = settings.read(
        ["--like=cloud"], {**ZERO_PORTS, "DATASTORE_EMULATOR": "datastore"}, tmp_path
    )
    none = settings.read([], ZERO_PORTS, tmp_path)

    assert (cloud.profile_path, cloud.profile.name) == (BUNDLED, "cloud")
    assert (cloud.datastore_kind, named.datastore_kind) == ("firestore", "datastore")
    assert (none.profile, none.profile_path) == (None, None)


def test_like_takes_a_file_of_ones_own(tmp_path):
    """From the folder where it is called."""
    own = tmp_path / "ours.toml"
    own.write_text(BUNDLED.read_text().replace('name = "cloud"', 'name = "ours"'))

    assert settings.read(["--like", "ours.toml"], ZERO_PORTS, tmp_path).profile.name == "ours"


def test_like_something_that_is_no_profile_says_what_is_wrong(tmp_path):
    """And what it takes."""
    (tmp_path / "ours.toml").write_text("name = 7")

    with pytest.raises(UsageError, match=r"--like takes 'cloud' or .*ours\.toml is no profile"):
        settings.read(["--like=ours.toml"], ZERO_PORTS, tmp_path)
    with pytest.raises(UsageError, match=r"clod cannot be read"):
        settings.read(["--like=clod"], ZERO_PORTS, tmp_path)


def test_a_console_on_a_free_port_is_that_of_the_folder(tmp_path):
    """CONSOLE_PORT=0 of `rollforward run` stands in the same shell as the other commands."""
    env = {"CONSOLE_PORT": "0"}
    assert settings.console_url(env, tmp_path) == "http://127.0.0.1:8000"
    (tmp_path / settings.DEV_DIR).mkdir()
    (tmp_path / settings.DEV_DIR / "console").write_text("http://127.0.0.1:4711\n")

    assert settings.console_url(env, tmp_path) == "http://127.0.0.1:4711"
    assert settings.console_url({"CONSOLE_PORT": "9000"}, tmp_path) == "http://127.0.0.1:9000"
