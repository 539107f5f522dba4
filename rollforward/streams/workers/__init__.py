"""Workers: the lease of an interval, and one bundle after the other."""
