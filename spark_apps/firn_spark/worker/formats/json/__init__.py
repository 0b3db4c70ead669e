"""JSON records: a compiled decoder, and the strict one that it has to agree with."""
