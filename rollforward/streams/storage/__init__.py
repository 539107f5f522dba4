"""Storage: rows, their texts and caches, and effects as values."""
