"""The nouns every process shares and the contracts between processes; standard library and pydantic only."""
