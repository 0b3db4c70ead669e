"""What builds, starts, measures and documents Firn: set-up, the test cluster, images, benchmarks, generation."""
