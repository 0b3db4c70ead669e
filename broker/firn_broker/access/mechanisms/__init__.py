"""SASL mechanisms: one exchange of messages each, and what they check clients with."""
