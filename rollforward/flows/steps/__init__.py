"""Steps of a flow in one delivery: called, waited for, undone."""
