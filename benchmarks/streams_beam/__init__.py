"""The demos' web log and Zeitgeist on our engine and on Apache Beam's local runner, in one run."""
