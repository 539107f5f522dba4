"""Publications: streams that other pipelines read, each from a position of its own.

    HITS = Publication("hits", keep=timedelta(days=7))
    WEBLOG = Pipeline("weblog", HitsPerPath, sinks=[HITS])
    ALERTS = Pipeline("alerts", Spikes, sources=[Subscription(HITS)])

`publication` is the sink that writes a log, `log` the rows of it, and `subscription` the source
that reads them. `registration` keeps the list of readers, and `retention` deletes old rows.

Below: `graph`, `storage`, `model`. Above: `exchange`, `workers`, `watermarks`, `topology` and the
sweep.

Source: MillWheel, 2013, 4.3: any computation may subscribe to any stream.
"""

from rollforward.streams.publications.publication import Publication
from rollforward.streams.publications.subscription import Subscription

__all__ = ["Publication", "Subscription"]
