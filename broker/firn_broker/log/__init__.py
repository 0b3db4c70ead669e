"""The two paths of record batches: written through the object store, read through the cache."""
