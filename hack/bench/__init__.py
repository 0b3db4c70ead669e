"""`make bench`: benchmarks, the programs that they compare, and the measurement of figures."""
