"""Quick checks of record values: they accept values that are certainly valid, and leave all others to the strict decoders.

Each value that a quick check accepts, the strict decoder of its schema accepts, too. The reverse does not hold.
"""
