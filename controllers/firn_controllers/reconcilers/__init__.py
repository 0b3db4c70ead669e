"""Reconcilers, one for each kind of key: they observe through ports, let the pure packages decide, act and report."""
