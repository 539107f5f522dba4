"""Builds and audits of tables, as walks over sources and rows."""
