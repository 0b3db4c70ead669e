"""Port `Authorities` in memory."""


class FakeAuthorities:
    def __init__(self) -> None:
        self.pem = ""
        self.sources: dict[str, list[str]] = {}
        """Profile -> the certificates of each source."""

    async def certificates(self, profile: str) -> str:
        return self.pem

    async def of_sources(self, profile: str) -> list[str]:
        return self.sources.get(profile, [self.pem])
