"""Moving: a pipeline is stopped, exported to a file, and continues from it elsewhere.

    stop(clients, WEBLOG)                       # Nothing is processed, and no push is accepted.
    export_to(clients, WEBLOG, "weblog.jsonl")
    ...
    import_from(clients, FRESH, "weblog.jsonl")

An export has the states and timers of all keys, the records that wait in inboxes, and the
watermarks and positions of the sources, all of one cut (`stopping`). `exporting` reads it page by
page and `importing` writes it into a pipeline that has never run, each of which may be killed and
repeated. `file_format` has the lines, by which a torn file is recognized. `seal_to` makes the
file of the results of another engine, as `rollforward.streams.beam` has them. `resume` takes a
stop back.

It uses all rooms of the streams below the driver; only the translation to Beam uses it.

Source: savepoints of Apache Flink; "drain" and "snapshot" of Dataflow.
"""

from rollforward.streams.moving.exporting import export_to
from rollforward.streams.moving.file_format import (
    Header,
    IncompleteExportError,
    read_header,
    seal_to,
)
from rollforward.streams.moving.importing import import_from
from rollforward.streams.moving.stopping import resume, stop

__all__ = [
    "Header",
    "IncompleteExportError",
    "export_to",
    "import_from",
    "read_header",
    "resume",
    "seal_to",
    "stop",
]
