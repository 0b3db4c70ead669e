"""This broker as a node: its lease, the partitions it leads, and identifiers that no other broker gives out."""
