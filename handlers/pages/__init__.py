"""The demos' pages and their API: one file a demo, and how they show things."""
