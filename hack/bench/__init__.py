"""Benchmarks of `make bench`: one module each, all giving `figures.Figure`s that `hack/bench/run` prints and keeps."""
