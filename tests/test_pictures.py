"""The README's pictures are made by a command, which sends forms as a browser would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.cloudtasks import plot
from tests.infra.documents import text_of
from tests.infra.pictures import IMAGES, PICTURES, Forms, main, missing_font

pytestmark = pytest.mark.fast

PAGE = """
<form action="/search"><input name="q"></form>
<form action="/send?x=1">
  <input type="hidden" name="token" value="t&amp;1"><input name="what" value="A party">
  <input type="checkbox" name="on" value="1" checked><input type="checkbox" name="off" value="1">
  <input type="file" name="list"><textarea name="note">two
lines</textarea>
  <select name="pace"><option value="fast">As it goes</option>
  <option value="slow" selected>Watch it</option></select>
  <select name="size"><option value="small">S</option><option value="large">L</option></select>
  <button name="verb" value="go">Go</button>
</form>
"""


def test_every_picture_of_the_readme_is_one_that_the_command_makes() -> None:
    """And there is no other in the folder: what is not made anew shows yesterday's pages."""
    pages = text_of("README.md") + text_of("docs/demos.md")
    shown = set(re.findall(r"images/([\w-]+\.png)", pages))
    made = {f"{p.name}{look.suffix}.png" for p in PICTURES for look in p.looks}

    assert shown == made
    assert {path.name for path in IMAGES.glob("*.png")} <= made


def test_the_picture_of_rates_is_what_the_command_draws() -> None:
    """The figures are in the picture; drawn again they make the same one."""
    text = plot.PICTURE.read_text(encoding="utf-8")
    found = re.search(r"<metadata>(.*)</metadata>", text)
    assert found
    figures = json.loads(found[1])

    assert plot.figures_of(reversed([json.dumps(figure) for figure in figures])) == figures
    assert plot.picture(figures) == text
    dots = [f'<circle cx="{x}"' for x in ("6.7", "13.3")]
    assert all(text.count(dot) == len(figures) == 3 for dot in dots)


def test_a_picture_of_nothing_is_refused() -> None:
    """Lines of other benchmarks have no rates."""
    with pytest.raises(ValueError, match="make bench NAMES=cloudtasks"):
        plot.figures_of(["measuring ...", '{"name": "cloudtasks.creates_per_s"}'])


@pytest.mark.parametrize("font", ["", "/fonts/gothic.ttf: Gothic"])
def test_without_a_font_for_what_the_pages_say_no_picture_is_taken(
    font: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says what to install, and leaves the pictures that there are."""
    command = tmp_path / "fc-list"
    command.write_text(f"#!/bin/sh\necho '{font}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert bool(missing_font()) == (not font)
    if not font:
        assert main([]) == 1
        assert "fonts-vlgothic" in capsys.readouterr().err


def test_a_form_is_sent_with_what_is_filled_in() -> None:
    """Hidden fields, defaults and what is selected; no file, no button, no empty box."""
    forms = Forms()
    forms.feed(PAGE)

    assert [form.action for form in forms.found] == ["/search", "/send?x=1"]
    assert forms.found[0].fields == {"q": ""}
    assert forms.found[1].fields == {
        "token": "t&1",
        "what": "A party",
        "on": "1",
        "note": "two\nlines",
        "pace": "slow",
        "size": "small",
    }
