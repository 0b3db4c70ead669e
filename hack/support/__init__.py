"""What set-up, the test cluster and benchmarks share: commands, processes, progress, places and the cache.

Standard library only: it runs on a fresh machine before any virtual environment exists.
"""
