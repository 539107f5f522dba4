"""The documentation site: it is built strictly, for each version, and asks no other host."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from docs.theme import links, navigation
from docs.theme.build import entries, ordered
from tests.documents.built_site import RELEASE, build, built_site
from tests.infra.documents import DOCUMENTS, ROOT, named

pytestmark = pytest.mark.timeout(300)  # A whole site, on a busy machine.

DOCS = ROOT / "docs"
PAGES = [path for path in DOCUMENTS if path.is_relative_to(DOCS)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with two versions."""
    return built_site(tmp_path_factory)


# What a browser asks of another host when it shows a page; a link is followed by a person.
FOREIGN = re.compile(
    r'<(?:img|link|script|source)\b[^>]*\b(?:src|srcset|href)="(?:https?:)?//[^"]*'
)


def test_every_document_has_a_page(site: Path) -> None:
    """Those outside docs/, too, which the site takes in."""
    for page in PAGES:
        folder = page.parent if page.stem == "README" else page.with_suffix("")
        assert (site / "dev" / folder.relative_to(DOCS) / "index.html").exists(), named(page)
    for uri in links.OUTSIDE:
        assert (site / "dev" / uri.removesuffix(".md") / "index.html").exists()


def test_every_source_that_a_page_links_is_on_the_site(site: Path) -> None:
    """A reader of the site follows a link into the code as a reader of the repository does."""
    html = (site / "dev/howto/declare-a-view/index.html").read_text(encoding="utf-8")
    source = site / "dev/source/docs/examples/sum_up_sales.py/index.html"

    assert 'href="../../source/docs/examples/sum_up_sales.py/"' in html
    assert 'id="L-12"' in source.read_text(encoding="utf-8")


def test_no_page_asks_another_host(site: Path) -> None:
    """No font, script or picture: the site works without a network, and tells nobody."""
    pages = sorted((site / "dev").rglob("*.html"))
    asked = {
        address
        for page in pages
        for address in FOREIGN.findall(page.read_text(encoding="utf-8"))
        if 'rel="canonical"' not in address
    }

    assert len(pages) > len(PAGES)
    assert asked == set()
    assert FOREIGN.search('<link rel="stylesheet" href="https://fonts.example/a.css">')


def test_each_version_is_in_the_menu_and_the_newest_opens_first(site: Path) -> None:
    """A release stands before the working tree."""
    listed = json.loads((site / "versions.json").read_text(encoding="utf-8"))
    page = (site / "dev/index.html").read_text(encoding="utf-8")

    assert [entry["version"] for entry in listed] == [RELEASE, "dev"]
    assert f"url={RELEASE}/" in (site / "index.html").read_text(encoding="utf-8")
    assert '"provider": "mike"' in page


def test_versions_are_ordered_as_numbers() -> None:
    """0.10 comes after 0.9, and the newest has the alias that old pages point to."""
    versions = ordered(["dev", "0.9", "0.10", "0.9.1"])

    assert versions == ["0.10", "0.9.1", "0.9", "dev"]
    assert [entry["aliases"] for entry in entries(versions)] == [["latest"], [], [], []]


def test_a_version_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """It would be a folder that no list can order."""
    refused = build("--version", "../x", "--site", str(tmp_path / "site"))

    assert refused.returncode == 2
    assert "the version must be a number" in refused.stderr
    assert not (tmp_path / "site").exists()


def test_a_broken_link_a_missing_anchor_and_a_lost_page_stop_the_build(tmp_path: Path) -> None:
    """Each is named."""
    lost = "howto/lost.md"
    for path in ROOT.iterdir():
        if path.name not in ("docs", "site", ".git"):
            (tmp_path / path.name).symlink_to(path)
    # Without the largest pages, whose absence adds complaints of its own.
    ignored = shutil.ignore_patterns("node_modules", "api")
    shutil.copytree(DOCS, tmp_path / "docs", ignore=ignored)
    with (tmp_path / "docs/tutorial.md").open("a", encoding="utf-8") as tutorial:
        tutorial.write("\n[a](nowhere.md) [b](operations.md#nowhere) [c](../nowhere.py)\n")
    (tmp_path / "docs" / lost).write_text("# Lost\n", encoding="utf-8")

    built = build("--site", str(tmp_path / "site"), folder=tmp_path)

    assert built.returncode != 0
    for complaint in (
        "'nowhere.md'",
        "'#nowhere'",
        "'../nowhere.py'",
        f"{lost} is in no",
    ):
        assert complaint in built.stderr


def test_the_navigation_follows_the_links_of_the_indexes() -> None:
    """A section is a tab; a folder's own index brings its pages, by its headings."""
    warnings: list[str] = []
    lost = "lost.md"
    texts = {
        "README.md": "# D\n[s](start.md)\n\n## How-tos\n[all](howto/README.md) [a](howto/a.md)\n"
        "\n## Reference\n[api](api.md), [b](howto/b.md), `[no](start.md)`\n",
        "start.md": "# A long heading\n",
        "howto/README.md": "# How-tos\n[b](b.md)\n\n## More\n[a](a.md) [front](../README.md)\n",
        "howto/a.md": "# A\n",
        "howto/b.md": "# B\n",
        "api.md": "# API\n[x](api/x.md)\n",
        "api/x.md": "# X\n",
        lost: "# Lost\n",
        "source/x.py.md": "# x.py\n",
    }

    tree = navigation.tree(texts, warnings.append)

    assert tree == [
        {"Home": "README.md"},
        {"Start": "start.md"},
        {"How-tos": ["howto/README.md", "howto/b.md", {"More": ["howto/a.md"]}]},
        {"Reference": [{"API": ["api.md", "api/x.md"]}]},
    ]
    assert [warning.split()[0] for warning in warnings] == [f"docs/{lost}"]


@pytest.mark.parametrize(
    ("uri", "target", "rewritten"),
    [
        ("howto/x.md", "../concepts/outbox.md#cost", "../concepts/outbox.md#cost"),
        ("howto/x.md", "../../CONTRIBUTING.md", "../contributing.md"),
        ("contributing.md", "docs/architecture.md", "architecture.md"),
        ("howto/x.md", "../../Dockerfile", "../source/Dockerfile.md"),
        ("howto/x.md", "../../main.py#L12", "../source/main.py.md#L-12"),
        ("howto/x.md", "../../README.md#patterns", "../overview.md#patterns"),
        ("howto/x.md", "../README.md", "../README.md"),
        ("howto/x.md", "https://example.org/a", "https://example.org/a"),
        ("howto/x.md", "#here", "#here"),
        ("howto/x.md", "gone.md", "gone.md"),
    ],
)
def test_a_link_of_a_code_host_becomes_a_link_of_the_site(
    uri: str, target: str, rewritten: str
) -> None:
    """Links in blocks of code stay as they are."""
    text = f"[a]({target})\n\n```\n[b](../../main.py)\n```\n"

    written = links.rewrite(text, uri, {"concepts/outbox.md", "architecture.md", "README.md"})

    assert written == f"[a]({rewritten})\n\n```\n[b](../../main.py)\n```\n"
