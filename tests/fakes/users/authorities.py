"""Port `Authorities` in memory."""


class FakeAuthorities:
    def __init__(self) -> None:
        self.pem = ""

    async def certificates(self, profile: str) -> str:
        return self.pem
