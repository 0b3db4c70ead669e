"""The operator process: kopf wiring, adapters to Kubernetes, Kafka and Iceberg, metrics, probes, the CLI."""
