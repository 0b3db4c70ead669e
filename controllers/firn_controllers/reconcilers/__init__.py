"""Reconcilers, one for each kind of key: they observe through ports, let the pure rooms decide, act and report."""
