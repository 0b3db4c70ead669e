"""The reconciler of profiles, with their brokers."""
