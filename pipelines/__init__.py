"""What the pages show: apps on the patterns, which they enter by their doors."""

# Before a model imports ndb: with the patterns comes what keeps libraries from being loaded early.
import pipelines  # noqa: F401
