"""Texts that users read in conditions and Events, rendered in the same way for every resource."""
