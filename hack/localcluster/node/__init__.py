"""The one node of the provider local: its programs, their settings, and its first process."""
