"""The cluster's one node when no kind is there: its programs, their settings, and its first process."""
