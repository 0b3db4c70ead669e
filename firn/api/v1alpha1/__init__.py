"""Version v1alpha1 of the API group ``firn.dev``."""

from firn.api.v1alpha1.iceberg_topic import IcebergTopic

__all__ = ["IcebergTopic"]
