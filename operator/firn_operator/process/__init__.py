"""The operator process: composition, watches, metrics, probes and logs."""
