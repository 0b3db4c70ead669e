"""What every process agrees on about tables: types, transforms, columns, properties, and which files are rewritten together."""
