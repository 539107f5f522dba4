"""Students by grade: a chart that costs one read a bar."""
