"""The pipelines of the demo app: one package a demo, each after a seed (a talk or a paper).

    invitations  continuations: one mail to each guest       B. Slatkin, Google I/O 2010
    grades       materialized views, joined and ranked       B. Slatkin, Google I/O 2010
    sums         fork-join queue: many writers, one row      B. Slatkin, Google I/O 2010
    counters     sharded, gathered and in-memory counters    B. Slatkin, Google I/O 2008
    blog         paging by a key order, and cached queries   B. Slatkin, Google I/O 2008
    numbers      latencies of each operation of the stack    B. Slatkin, Google I/O 2008
    quilt        batches of tasks, nested, with a callback   D. Hermes, 2012
    orders       flows of steps, with waits and undos        H. Garcia-Molina, 1987
    tenants      lanes: order, limit, rate, a fair share      Shreedhar and Varghese, 1995
    weblog       streams: windows, sessions, top lists       MillWheel paper, VLDB 2013
    zeitgeist    streams: a model, and spikes and dips       MillWheel paper, VLDB 2013

They import the library by its doors only.
"""

# Before a model imports ndb: with the patterns comes what keeps libraries from being loaded early.
import rollforward  # noqa: F401
