"""Builds of the project's images, also without a container engine."""
