"""Adapters behind the ports of `firn_controllers.ports`: Kubernetes, Kafka, Iceberg catalogs and the drivers' progress."""
