"""Request headers, and the hand-written codecs of Produce and Fetch."""
