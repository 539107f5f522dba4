"""The target and the two YAML files that go with it, found without running any of it."""

import sys

import pytest
import yaml

from rollforward.local import target
from rollforward.local.errors import UsageError

CODE = "def serve(): ...\n"


@pytest.fixture
def root(tmp_path):
    """A folder with an app, a package with one of its own, and a queue.yaml."""
    (tmp_path / "main.py").write_text(f"raise SystemExit('this was run')\n{CODE}")
    (tmp_path / "queue.yaml").touch()
    shop = tmp_path / "examples" / "shop"
    shop.mkdir(parents=True)
    (shop / "__init__.py").write_text("raise SystemExit('this was run')\n")
    (shop / "app.py").write_text(CODE)
    return tmp_path


def find(root, text, *, queues=None, cron=None):
    return target.find(text, root, queues=queues, cron=cron)


def test_a_module_of_the_current_folder_takes_the_files_there(root):
    """Nothing of it is imported: it would end the platform with it."""
    found = find(root, "main:serve")

    assert (found.text, found.folder) == ("main:serve", root)
    assert (found.queue_yaml, found.cron_yaml) == (root / "queue.yaml", root / "cron.yaml")


def test_each_file_beside_a_packages_module_goes_before_that_of_the_folder(root):
    """They are looked for one by one."""
    shop = root / "examples" / "shop"
    (root / "cron.yaml").touch()
    plain = find(root, "examples.shop.app:serve")
    (shop / "queue.yaml").touch()

    own = find(root, "examples.shop.app:serve")

    assert plain.queue_yaml == root / "queue.yaml"
    assert (own.folder, own.queue_yaml) == (shop, shop / "queue.yaml")
    assert own.cron_yaml == root / "cron.yaml"


def test_an_app_without_files_has_two_queues_and_the_sweep(root):
    """A first app is one file; a queue.yaml that is written later counts from then on."""
    (root / "queue.yaml").unlink()
    found = find(root, "main:serve")

    queues = [queue["name"] for queue in yaml.safe_load(found.queues_file.read_text())["queue"]]
    jobs = [job["url"] for job in yaml.safe_load(found.cron_file.read_text())["cron"]]
    assert (queues, jobs) == (["default", "outbox"], ["/cron/sweep"])
    for path in (found.queue_yaml, found.cron_yaml):
        path.touch()
    assert (found.queues_file, found.cron_file) == (root / "queue.yaml", root / "cron.yaml")


def test_files_that_are_named_are_taken(root):
    """From the folder where one stands."""
    (root / "queues.yaml").touch()
    (root / "jobs.yaml").touch()

    found = find(root, "main:serve", queues="queues.yaml", cron="jobs.yaml")

    assert (found.queue_yaml, found.cron_yaml) == (root / "queues.yaml", root / "jobs.yaml")
    assert found.cron_source == "from jobs.yaml"


def test_a_module_on_the_path_is_found(root, tmp_path_factory, monkeypatch):
    """The current folder comes first, then PYTHONPATH; its files are those of the folder."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kiosk.py").write_text(CODE)
    (elsewhere / "main.py").write_text(CODE)
    (elsewhere / "queue.yaml").touch()
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])

    kiosk, main = find(root, "kiosk:serve"), find(root, "main:serve")

    assert (kiosk.folder, kiosk.queue_yaml) == (elsewhere, root / "queue.yaml")
    assert main.folder == root


@pytest.mark.parametrize(
    "code",
    [
        "serve = make()",
        "if True:\n    def serve(): ...",
        "try:\n    from shop import serve\nexcept ImportError:\n    pass",
        "from shop import sell as serve",
        "from shop import *",
        "def __getattr__(name): ...",
        "def broken(:",
    ],
)
def test_what_may_be_in_a_module_is_left_to_the_worker(root, code):
    """Only a name that is plainly not there is refused before anything starts."""
    (root / "main.py").write_text(f"{code}\n")

    assert find(root, "main:serve()").text == "main:serve"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("main", "module:callable"),
        ("main:", "module:callable"),
        (":serve", "module:callable"),
        ("examples/shop:serve", "module:callable"),
        ("absent:serve", "There is no module 'absent'"),
        ("examples.absent:serve", "There is no module 'examples.absent'"),
        ("main.serve:serve", "There is no module 'main.serve'"),
        ("main:absent", "There is no 'absent' in .*name another one: main:callable"),
        ("examples:serve", "There is no 'serve' in .*examples"),
    ],
)
def test_a_target_that_is_not_there_is_refused_with_what_to_do(root, text, said):
    """A sentence for a person who mistyped it."""
    with pytest.raises(UsageError, match=said):
        find(root, text)


def test_a_folder_without_a_target_serves_main_app_or_its_only_module(tmp_path):
    """In this order; a module without a `serve`, or one that cannot be parsed, is no candidate."""
    (tmp_path / "models.py").write_text("class Sale: ...\n")
    (tmp_path / "broken.py").write_text("def serve(:\n")
    (tmp_path / "shop.py").write_text("serve = make()\n")
    only = target.default(tmp_path)
    (tmp_path / "app.py").write_text(CODE)
    app = target.default(tmp_path)
    (tmp_path / "main.py").touch()

    assert (only, app, target.default(tmp_path)) == ("shop:serve", "app:serve", "main:serve")


def test_a_folder_with_no_candidate_or_several_says_what_to_name(tmp_path):
    """Guessing would serve another app than the reader thinks of."""
    assert target.default(tmp_path) == target.DEFAULT
    with pytest.raises(
        UsageError, match=r"no module 'shopfront'.*name the right one as module:call"
    ):
        find(tmp_path, "shopfront:serve")
    for name in ("shop", "blog"):
        (tmp_path / f"{name}.py").write_text(CODE)
    with pytest.raises(UsageError, match="name one of blog:serve, shop:serve"):
        target.default(tmp_path)
