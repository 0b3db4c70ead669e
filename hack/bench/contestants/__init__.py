"""The programs that benchmarks run, and the stores that they use."""
