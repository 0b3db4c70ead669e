"""The programs that benchmarks run, the stores they use and the records they get."""
