"""The reconciler of policies: observe, decide, start, report."""
