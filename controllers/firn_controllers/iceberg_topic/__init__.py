"""One IcebergTopic: gather -> checks -> plan -> apply -> status."""
