"""SASL mechanisms: the exchange of messages of each, and the public keys that verify tokens."""
