"""A picture of dispatch rates against the token bucket, drawn from the benchmark's lines.

    make bench NAMES=cloudtasks > rates.txt
    python -m benchmarks.cloudtasks.plot rates.txt

It writes docs/images/dispatch-rates.svg, with embedded figures from which a test redraws it.
The colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[2] / "docs/images/dispatch-rates.svg"
_NAME = "cloudtasks.from_bucket_at_"
_FIGURES = ("name", "burst", "counts", "bucket")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 200, 150, 46, 34, 62
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600 }
.axis { stroke: #999; fill: none }
.bucket { stroke: #8a6d00; stroke-width: 2; stroke-dasharray: 5 3; fill: none }
.counts circle { fill: #1565c0 }
.end { text-anchor: end }
.middle { text-anchor: middle }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd }
  .bucket { stroke: #e6c34a }
  .counts circle { fill: #64b5f6 }
}
"""


def figures_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the picture's figures from a benchmark's lines, in ascending order of the rates.

    Raises:
        ValueError: no line has the figures of a rate.
    """
    results = [json.loads(line) for line in lines if line.startswith("{")]
    rated = [result for result in results if result["name"].startswith(_NAME)]
    if not rated:
        raise ValueError(f"no line has a figure of {_NAME}*; run make bench NAMES=cloudtasks")
    return sorted(({key: result[key] for key in _FIGURES} for result in rated), key=_rate)


def _rate(figure: dict[str, Any]) -> int:
    return int(figure["name"].removeprefix(_NAME).removesuffix("_per_s"))


def picture(figures: list[dict[str, Any]]) -> str:
    """Return the picture as SVG."""
    width = len(figures) * (_WIDTH + _GAP) + _LEFT
    height = _TOP + _HEIGHT + 76
    panels = "\n".join(
        f'<g transform="translate({_LEFT + index * (_WIDTH + _GAP)} {_TOP})">\n'
        + "\n".join(_panel(figure))
        + "\n</g>"
        for index, figure in enumerate(figures)
    )
    legend_y = height - 14
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>Dispatches of a backlog over time, counted at the handler, beside the token bucket</title>
<metadata>{json.dumps(figures)}</metadata>
<style>{_STYLE}</style>
{panels}
<path class="bucket" d="M{_LEFT} {legend_y - 4}h24"/>
<text x="{_LEFT + 30}" y="{legend_y}">token bucket: burst + rate × seconds</text>
<g class="counts"><circle cx="{_LEFT + 290}" cy="{legend_y - 4}" r="3"/></g>
<text x="{_LEFT + 300}" y="{legend_y}">requests that the handler had received</text>
</svg>
"""


def _panel(figure: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of one rate's diagram, whose origin is its upper left corner."""
    counts, bucket = figure["counts"], figure["bucket"]
    seconds = (len(counts) + 1) / 10
    top = max(*counts, *bucket)

    def place(tenth: int, count: float) -> tuple[float, float]:
        at = tenth / 10 / seconds * _WIDTH
        return round(at, 1), round(_HEIGHT * (1 - count / top), 1)

    points = [(0, figure["burst"]), *enumerate(bucket, 1)]
    line = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
    yield (
        f'<text class="title" x="0" y="-14">{_rate(figure)} a second, '
        f"burst {figure['burst']}</text>"
    )
    yield f'<path class="axis" d="M0 0V{_HEIGHT}H{_WIDTH}"/>'
    for count in (0, top / 2, top):
        y = place(0, count)[1]
        yield f'<text class="end" x="-6" y="{y + 4:g}">{count:.0f}</text>'
    for second in range(int(seconds) + 1):
        x = place(second * 10, 0)[0]
        yield f'<text class="middle" x="{x:g}" y="{_HEIGHT + 18}">{second} s</text>'
    yield f'<polyline class="bucket" points="{line}"/>'
    dots = (place(tenth, count) for tenth, count in enumerate(counts, 1))
    circles = "".join(f'<circle cx="{x}" cy="{y}" r="2.2"/>' for x, y in dots)
    yield f'<g class="counts">{circles}</g>'


def main() -> int:
    """Draw the lines of a file, or return 2 if it has none."""
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.cloudtasks.plot FILE", file=sys.stderr)
        return 2
    try:
        figures = figures_of(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    PICTURE.write_text(picture(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
