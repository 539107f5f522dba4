"""Build the documentation site: `make docs`, or `make docs VERSION=0.1` for a release.

Each version has a folder of its own in site/: `dev` is the working tree. `versions.json` lists
them for the menu at the top of each page, and site/index.html leads to the newest release.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mkdocs.commands import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
DEVELOPMENT = "dev"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.theme.build", description=__doc__)
    parser.add_argument("--version", default=DEVELOPMENT, help="a release, as 0.1; default: dev")
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="folder of all versions")
    options = parser.parse_args(arguments)
    version = options.version
    if version != DEVELOPMENT and not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        parser.error(f"the version must be a number such as 0.1 or 0.1.2, got {version}")
    logging.basicConfig(level=logging.INFO, format="%(levelname)-7s %(message)s")
    build_version(version, options.site)
    print(f"{options.site / version / 'index.html'}")


def build_version(version: str, site: Path) -> None:
    """Build the documents of the working tree as a version, and list the versions.

    Raises:
        mkdocs.exceptions.Abort: a link, an anchor or a page is missing; the log says which.
    """
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site / version), strict=True)
    config.extra["version"] = {"provider": "mike", "default": "latest"}
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build.build(config)
    finally:
        config.plugins.on_shutdown()
    versions = ordered(path.name for path in site.iterdir() if (path / "index.html").exists())
    (site / "versions.json").write_text(json.dumps(entries(versions), indent=1), encoding="utf-8")
    (site / "index.html").write_text(redirect(versions[0]), encoding="utf-8")


def ordered(versions: Iterable[str]) -> list[str]:
    """Return versions, the newest release first and the working tree last."""

    def key(version: str) -> list[int]:
        return [] if version == DEVELOPMENT else [int(part) for part in version.split(".")]

    return sorted(versions, key=key, reverse=True)


def entries(versions: Sequence[str]) -> list[dict[str, object]]:
    """Return what the theme's menu of versions reads; the newest is the latest."""
    return [
        {"version": version, "title": version, "aliases": ["latest"] if index == 0 else []}
        for index, version in enumerate(versions)
    ]


def redirect(version: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Rollforward</title>\n'
        f'<meta http-equiv="refresh" content="0; url={version}/">\n'
        f'<a href="{version}/">Documentation of Rollforward</a>\n</html>\n'
    )


if __name__ == "__main__":
    main()
