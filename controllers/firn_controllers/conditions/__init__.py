"""Texts that users read in conditions and Events: rendered the same way for every resource."""
