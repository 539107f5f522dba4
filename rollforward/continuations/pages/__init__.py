"""Pages of a run: an attempt at one, its lease, its receipts, its closing, and its cache."""
