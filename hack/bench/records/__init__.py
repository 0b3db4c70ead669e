"""The records of the benchmarks: seeded generators, and the producers that fill topics with them."""
