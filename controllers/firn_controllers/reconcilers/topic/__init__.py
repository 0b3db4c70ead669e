"""The reconciler of IcebergTopics: its story, and one module for each part of it."""
