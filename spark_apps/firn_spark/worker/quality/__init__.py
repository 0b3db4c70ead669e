"""Quality rules in a worker: checks become Arrow kernels, which judge all rows of a batch at once."""
