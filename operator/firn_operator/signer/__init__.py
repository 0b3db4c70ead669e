"""The process `firn-signer`: it holds CAs, and issues certificates of brokers and of the quick start's stores."""
