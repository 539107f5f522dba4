"""What the pages show: apps on the patterns, which they enter by their doors."""
