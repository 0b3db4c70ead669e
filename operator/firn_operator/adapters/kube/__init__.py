"""The Kubernetes API: requests, objects and Events, and the state of workloads."""
