"""Benchmarks of `make bench`, one module each: ``measure(options)`` yields figures."""
