"""The process `firn-signer`: it holds a CA for each profile with ``selfSigned``, and issues the certificates of its brokers."""
