"""Artifacts that are fetched or built once, and then cached: tools, packages, jars, wheels, image layers."""
