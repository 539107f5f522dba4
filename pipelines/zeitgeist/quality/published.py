"""Scores on series that were labelled by others, beside the published ones.

The series are AAPL, AMZN, CRM, FB and KO of `realTweets` in the Numenta Anomaly Benchmark: mentions
in five minutes, eight weeks each, with 16 labelled windows. They are no part of this project. The
other scores follow from the results that the benchmark publishes, by the rule of `scores.py`.
`python -m pipelines.zeitgeist --cross-validate FILES` repeats ours.
"""

from __future__ import annotations

from collections.abc import Mapping

# F1 by detector. "Cross-validated": each series by thresholds that were chosen without it.
SCORES: Mapping[str, float] = {
    "Zeitgeist, as shipped": 0.79,
    "Zeitgeist, cross-validated": 0.81,
    "contextOSE": 0.77,
    "ARTime": 0.60,
    "numenta": 0.57,
    "relativeEntropy": 0.55,
}
