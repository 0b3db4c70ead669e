"""What is fetched or built once and kept in the cache: tools, packages, jars, wheels, image layers."""
