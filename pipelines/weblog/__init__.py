"""The web log: hits, sessions, error rates and top paths of an access log, over streams."""
