"""Access control: the principal of a client, and its rights."""
