"""Measures of docstrings and names that read like a translation, for the rules of the house.

Four of them: class and module docstrings that begin with a question word, function docstrings of
the form "Have it done", constructions that prose of native engineers does not have (tell-tales),
and locals named by a pronoun or an adverb instead of by their thing.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

PRONOUN = re.compile(
    r"_*(found|told|said|made|given|kept|was|known|left|mine|each|wanted|taken|came|gone|missing|"
    r"before|after|own|these|those|what|why|how|who|whole|more|most|least|again|already|new|old|"
    r"here|there|now|then|later|first|last|rest|others)_*"
)
QUESTION = re.compile(r"(What|How|Where|When|Why|Whether|Who|Which)\b")
HAVE_DONE = re.compile(
    r"Have (a|an|the|it|new|weak|what|sinks|pull|intervals|others|timers|all|each)\b"
)
TELL_TALES = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"(?:^|(?<=[.:;!?] )|(?<=\n))(?:What|Who|Whoever|Whose|Of|Where)\b(?![^.?!]{0,80}\?)",
        r"\b(?:that of|those of|those that|those who|that which|such)\b",
        r"(?<=[a-z,] )what (?:is|was|were|are|has|have|it|they|comes|came|waits|a |the |this)\b",
        r"\bso (?:much|many|long|often)\b",
        r"\b(?:nobody|somebody|whoever|anew|anybody|whatever|behind it|beside)\b",
        r"\b(?:stands?|stood|goes on|go on|comes again|come again|told|hands? on|let in|lets? go|"
        r"at rest|under way|by itself)\b",
    )
]


@dataclass(frozen=True)
class Measures:
    """Counts of a package's questions and "Have it done"; rates of the other two, per 1,000."""

    questions: int = 0
    have_done: int = 0
    tell_tales: float = 2
    pronouns: float = 10

    def ceilings(self, goals: Measures) -> Measures:
        """Return whole numbers that these measures do not exceed, none of them below a goal."""
        least = asdict(goals)
        return Measures(
            **{name: max(least[name], math.ceil(value)) for name, value in asdict(self).items()}
        )


GOALS = Measures()


def measures_of(sources: Iterable[str]) -> Measures:
    """Measure the sources of a package."""
    questions = have_done = words = tell_tales = names = pronouns = 0
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if name := _bound_name(node):
            names += 1
            pronouns += bool(PRONOUN.fullmatch(name))
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        if isinstance(node, ast.Module | ast.ClassDef):
            questions += bool(QUESTION.match(text))
        else:
            have_done += bool(HAVE_DONE.match(text))
        words += len(re.findall(r"[A-Za-z']+", text))
        tell_tales += sum(len(pattern.findall(text)) for pattern in TELL_TALES)
    rates = (1_000 * tell_tales / max(1, words), 1_000 * pronouns / max(1, names))
    return Measures(questions, have_done, *rates)


def tell_tales_of_page(text: str) -> float:
    """Return the tell-tales of a page of Markdown for 1,000 words, without its code."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "code", prose)
    tell_tales = sum(len(pattern.findall(prose)) for pattern in TELL_TALES)
    return 1_000 * tell_tales / max(1, len(prose.split()))


def _bound_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


def packages(root: Path) -> dict[str, list[Path]]:
    """Return the files of each package whose prose is measured, by its folder."""
    library = root / "rollforward"
    folders = [path.parent for path in sorted(library.glob("*/__init__.py"))]
    folders += [root / name for name in ("benchmarks", "handlers", "models", "pipelines")]
    by_folder = {str(path.relative_to(root)): sorted(path.rglob("*.py")) for path in folders}
    return {**by_folder, "rollforward": sorted(library.glob("*.py"))}


def pages(root: Path) -> dict[str, list[Path]]:
    """Return the pages of the documentation that are written by hand, by their folder."""
    docs = root / "docs"
    by_folder: dict[str, list[Path]] = {"": [root / "README.md", root / "CONTRIBUTING.md"]}
    for path in sorted(docs.rglob("*.md")):
        if path.name == "results.md" or path.is_relative_to(docs / "reference"):
            continue
        by_folder.setdefault(str(path.parent.relative_to(root)), []).append(path)
    return by_folder
