"""Merges of small objects: which are due, the work, its process, its schedule."""
