"""The command ``firn adopt``: what a table's writer was configured to do, and the manifest that continues its work."""
