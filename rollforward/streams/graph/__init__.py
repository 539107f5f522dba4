"""Graph: which computations run, in which version, and who reads whom."""
