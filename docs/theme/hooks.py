"""Hooks of MkDocs: pages that stand outside docs/, the navigation, and links to sources.

The documents are written for a code host: their links are relative, and lead to any file of the
repository. The site has a page for each file that a document links, under `source/`, so a link
works without a code host and shows the file of the same version.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from docs.theme import links, navigation, sources  # noqa: E402  The path is needed for it.

log = logging.getLogger("mkdocs.hooks.rollforward")

ASSETS = Path(__file__).parent / "assets"
MERMAID = Path(__file__).parent / "node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"
SOURCE_META = """---
search:
  exclude: true
hide: [navigation, toc]
---
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and assets that docs/ does not hold, and lay out the navigation."""
    for asset in sorted(ASSETS.iterdir()):
        files.append(_from(config, f"assets/{asset.name}", asset))
    if MERMAID.exists():
        files.append(_from(config, "assets/mermaid.js", MERMAID))
    else:
        log.info("No mermaid (npm ci --prefix docs/theme): diagrams are shown as text.")
    files.append(_from(config, "assets/icon.svg", ROOT / "static/icon.svg"))
    for uri, path in links.OUTSIDE.items():
        files.append(_from(config, uri, ROOT / path))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for path in sorted(_linked_sources(texts)):
        text = f"{SOURCE_META}# {path}\n"
        files.append(File.generated(config, links.page_of_source(path), content=text))
    config.nav = navigation.tree(texts, log.warning)
    return files


def _from(config: MkDocsConfig, uri: str, path: Path) -> File:
    return File.generated(config, uri, abs_src_path=str(path))


def _linked_sources(texts: dict[str, str]) -> set[str]:
    found: set[str] = set()
    for uri, text in texts.items():
        for target in links.targets(text):
            path, _ = links.resolve(uri, target)
            if path and links.is_source(path, texts):
                found.add(path)
    return found


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ into links to pages of the site."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    if uri == navigation.FRONT:
        page.meta["hide"] = ["navigation"]
    pages = {file.src_uri for file in files.documentation_pages()}
    return links.rewrite(markdown, uri, pages)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the lines of a source, each with an anchor, and put diagrams into frames."""
    path = links.source_of_page(page.file.src_uri)
    if path is None:
        return re.sub(r'<pre class="mermaid">.*?</pre>', _framed, html, flags=re.DOTALL)
    shown, anchors = sources.render(ROOT / path)
    page.present_anchor_ids = (page.present_anchor_ids or set()) | anchors
    return html + shown


def _framed(diagram: re.Match[str]) -> str:
    if MERMAID.exists():
        return f'<div class="diagram" tabindex="0">{diagram[0]}</div>'
    # Of another class, or the theme would fetch the library from another host.
    return diagram[0].replace("mermaid", "diagram-source", 1)


def on_page_context(context: dict[str, Any], page: Page, **_: Any) -> dict[str, Any]:
    """Tell the template whether the page draws a diagram."""
    context["draws"] = MERMAID.exists() and 'class="mermaid"' in (page.content or "")
    return context


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Name the theme's search for those who hear the page."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
