"""The pipelines of the demo app, which enter the library by its doors."""

# Before a model imports ndb: with the patterns comes what keeps libraries from being loaded early.
import rollforward  # noqa: F401
