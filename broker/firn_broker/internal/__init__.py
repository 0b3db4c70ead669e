"""The internal listener, at which drivers ask where batches are stored. Their tasks then read the objects themselves."""
