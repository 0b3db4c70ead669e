"""The internal listener for drivers.

Drivers ask where batches are stored, so that their tasks read the objects themselves. They also name offsets whose records a table has."""
