"""Measure the CPU and memory of processes and the commits of tables, and print figures."""
