"""The operator's decisions: the loop, the reconcilers, the pure rooms below them, and the ports that they need."""
