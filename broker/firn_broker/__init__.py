"""The broker of diskless topics: the Kafka protocol over an object store and a coordinator. Its processes keep
nothing."""
