"""The operator's decisions: the loop, the reconcilers, the pure packages below them, and the ports that they need."""
