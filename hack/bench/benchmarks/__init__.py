"""Benchmarks of `make bench`. Each module is one benchmark, and its ``measure(options)`` yields figures."""
