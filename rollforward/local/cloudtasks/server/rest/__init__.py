"""The REST API: its addresses, its JSON, and its errors."""
