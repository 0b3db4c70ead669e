"""Commands about resources, which need the Kubernetes API and the rights of the person who runs them, and nothing else."""
