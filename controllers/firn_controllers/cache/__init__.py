"""Caches of the resources that the watches last showed, indexed by the questions that reconcilers ask."""
