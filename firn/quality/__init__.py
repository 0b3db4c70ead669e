"""Quality rules of records: the language of their checks, without the code that evaluates it."""
