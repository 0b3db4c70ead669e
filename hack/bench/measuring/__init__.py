"""How benchmarks measure: CPU and memory of processes, commits of tables, figures."""
