"""`make bench`: benchmarks, the programs they compare, and how figures are taken."""
