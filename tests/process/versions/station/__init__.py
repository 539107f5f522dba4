"""Two versions of a weather station: a pipeline, and schedules of users."""
