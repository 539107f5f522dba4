"""Modules that several demos need; none of them imports a demo."""
