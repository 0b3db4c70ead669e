"""Firn: streaming lakehouse topics on Kubernetes. This package holds what every process shares: nouns and contracts, no I/O."""

__version__ = "0.2.0"
