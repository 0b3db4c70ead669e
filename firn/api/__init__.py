"""The Kubernetes API of Firn: one pydantic model per custom resource, from which the CRDs are generated."""
