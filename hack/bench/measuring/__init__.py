"""Measurement of benchmarks: CPU and memory of processes, commits of tables, figures."""
