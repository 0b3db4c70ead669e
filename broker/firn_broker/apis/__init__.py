"""One module for each API of the Kafka protocol: its versions, what it does, and what it leaves out."""
