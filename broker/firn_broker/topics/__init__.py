"""Topics: their creation, the broker's view of their metadata, and their configs."""
