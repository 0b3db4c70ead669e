"""Reconcilers: one for each kind of key. They observe through ports, let the pure rooms decide, act, and report."""
