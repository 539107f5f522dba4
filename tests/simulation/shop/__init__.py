"""The app of the simulator: its entities, its parts in two versions, and its totals."""
