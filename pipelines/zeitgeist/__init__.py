"""Zeitgeist: which queries are asked for more, or less, than is usual at this hour of the week."""
