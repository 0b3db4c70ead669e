"""Tools that build, start, measure and document Firn: set-up, the local cluster, images, benchmarks, generation."""
