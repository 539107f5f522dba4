"""From the save of a source to its rows: markers, updates, and their transport."""
