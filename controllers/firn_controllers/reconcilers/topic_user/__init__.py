"""The reconciler of TopicUsers."""
