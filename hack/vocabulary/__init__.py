"""List the words that users read: conditions, Events, and the texts of messages, found in the source."""
