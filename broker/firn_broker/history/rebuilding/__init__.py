"""Rebuilds batches from data files for consumers, in processes of their own."""
