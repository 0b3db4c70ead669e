"""Modules that set-up, the local cluster and benchmarks share: commands, processes, progress, paths and the cache.

They use the standard library only, because they run on a fresh machine before any virtual environment exists.
"""
