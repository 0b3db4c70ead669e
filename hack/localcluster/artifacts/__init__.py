"""Artifacts that are fetched or built once and cached: tools, packages, jars, wheels, image layers."""
