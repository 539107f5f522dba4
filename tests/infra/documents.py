"""The documents and the sources, as the tests of both read them."""

from __future__ import annotations

import hashlib
import importlib
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if "node_modules" not in path.parts
)
PACKAGES = ("handlers", "pipelines", "models", "rollforward")
LOCAL_ENVIRONMENT = {
    "GOOGLE_CLOUD_PROJECT": "demo-docs",
    "DATASTORE_EMULATOR_HOST": "127.0.0.1:1",
    "CLOUD_TASKS_EMULATOR_HOST": "127.0.0.1:1",
    "TASKS_URL": "http://127.0.0.1:1",
    "TASKS_SERVICE_ACCOUNT": "tasks@demo-docs.iam.gserviceaccount.com",
    "SMTP_HOST": "127.0.0.1:1",
    "SECRET_KEY": hashlib.sha384(b"the key of these tests").hexdigest(),
}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sources(*folders: str) -> list[Path]:
    """Return the Python files of some folders, and main.py."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [ROOT / "main.py", *found]


def entity_modules() -> list[ModuleType]:
    """Return the modules of entities, of the demo app and of the library."""
    paths = [*ROOT.glob("models/[!_]*.py"), *ROOT.glob("rollforward/**/*entities.py")]
    names = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return [importlib.import_module(name) for name in names]


def cells(document: str, section: str = "") -> list[list[str]]:
    """Return the rows of the tables in a document, or in one section of it."""
    text = text_of(document)
    if section:
        text = re.split(r"^## ", text.partition(f"## {section}\n")[2], flags=re.MULTILINE)[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if set("".join(row)) - set("-| :")]


def quoted(text: str) -> set[str]:
    """Return what stands between backticks, blocks of code aside."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", prose))
