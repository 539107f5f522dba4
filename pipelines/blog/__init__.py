"""A blog: posts under an index, comments under a high write rate, both in pages that cost alike."""
