"""Rules about tables that all processes share: types, transforms, columns, properties, and files to rewrite
together."""
