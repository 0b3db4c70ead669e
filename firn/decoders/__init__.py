"""Strict decoders of record values, one value at a time, and the vocabulary of bad records. The compiled decoders have to agree with them."""
