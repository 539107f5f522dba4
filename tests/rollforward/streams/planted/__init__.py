"""Planted bugs: the protocol with a part left out, which the schedules must notice."""
