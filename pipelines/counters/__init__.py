"""A counter that many writers click, kept in four ways."""
