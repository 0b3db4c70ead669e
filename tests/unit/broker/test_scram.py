"""SCRAM and PLAIN at the broker: the vectors of RFC 7677, passwords, malformed messages, and users that do not exist."""

import base64
import hashlib
import hmac
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from firn_broker.access.mechanisms import plain, scram
from firn_broker.access.mechanisms.exchange import AuthenticationError, Exchange, Step
from firn_broker.access.mechanisms.plain import PlainExchange
from firn_broker.access.mechanisms.scram import DECOY_ITERATIONS, DIGESTS, Credentials, ScramExchange, credential
from firn_broker.access_types import CredentialKey, ScramCredential, ScramMechanism
from firn_operator.adapters.kafka import access

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
ITERATIONS = DECOY_ITERATIONS
"""The operator chooses the same number."""
SALT = b"salt of checkout"
PASSWORD = "pencil, =naïve"


def secret() -> bytes:
    return b"the secret of decoys"


NONCE = "broker-nonce"


def made(
    key: CredentialKey, password: str = PASSWORD, salt: bytes = SALT, iterations: int = ITERATIONS
) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(DIGESTS[key.mechanism], password.encode(), salt, iterations)
    return credential(key, salted, salt, iterations)


USERS = ("shop.checkout", "a=b,c", "käse")
STORED = {key: made(key) for user in USERS for key in (CredentialKey(user, SHA_256), CredentialKey(user, SHA_512))}


def credentials() -> Credentials:
    return Credentials(STORED.get, secret)


def exchange(mechanism: ScramMechanism = SHA_256, nonce: str = NONCE) -> ScramExchange:
    return ScramExchange(mechanism, credentials(), lambda: nonce)


class ScramClient:
    """The client's side, written from RFC 5802."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str = PASSWORD, header: str = "n,,") -> None:
        self._digest, self._password, self._header = DIGESTS[mechanism], password, header
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=client-nonce"
        self.first = (header + self._bare).encode()
        self.signature = b""

    def final(self, answer: bytes) -> bytes:
        nonce, salt, iterations = (field[2:] for field in answer.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self._digest, self._password.encode(), base64.b64decode(salt), int(iterations))
        bare = f"c={base64.b64encode(self._header.encode()).decode()},r={nonce}"
        signed = f"{self._bare},{answer.decode()},{bare}".encode()
        key = hmac.digest(salted, b"Client Key", self._digest)
        signature = hmac.digest(hashlib.new(self._digest, key).digest(), signed, self._digest)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        self.signature = base64.b64encode(hmac.digest(server_key, signed, self._digest))
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()


async def log_in(server: ScramExchange, client: ScramClient) -> Step:
    return await server.step(client.final((await server.step(client.first)).answer))


async def test_the_example_of_rfc_7677() -> None:
    key = CredentialKey("user", SHA_256)
    stored = {key: made(key, "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)}
    server = ScramExchange(SHA_256, Credentials(stored.get, secret), lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = await server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == Step(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    last = await server.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == Step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "User:user", credential=stored[key])


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=shop.checkout,"])
@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_a_client_with_the_password_authenticates(mechanism: ScramMechanism, header: str) -> None:
    client = ScramClient(mechanism, "shop.checkout", header=header)
    last = await log_in(exchange(mechanism), client)
    assert last.answer == b"v=" + client.signature
    assert last.principal == "User:shop.checkout"
    assert last.credential is not None
    assert last.credential.key == CredentialKey("shop.checkout", mechanism)


@pytest.mark.parametrize("user", USERS)
async def test_names_may_contain_any_printable_character(user: str) -> None:
    assert (await log_in(exchange(), ScramClient(SHA_256, user))).principal == f"User:{user}"


async def test_unknown_extensions_are_ignored() -> None:
    server, client = exchange(), ScramClient(SHA_256, "shop.checkout,r=client-nonce")
    first = b"n,,n=shop.checkout,r=client-nonce,x=1,tokenauth=false"
    answer = (await server.step(first)).answer
    assert answer.startswith(b"r=client-noncebroker-nonce,")
    with pytest.raises(AuthenticationError, match="credentials"):
        await server.step(client.final(answer))  # its proof does not sign the extensions


async def test_a_wrong_password_fails() -> None:
    with pytest.raises(AuthenticationError) as caught:
        await log_in(exchange(), ScramClient(SHA_256, "shop.checkout", "pencil"))
    assert caught.value.reason == "user 'shop.checkout': the password is wrong"


def test_decoys_have_the_iterations_that_the_operator_chooses() -> None:
    assert access.ITERATIONS == DECOY_ITERATIONS


async def test_a_client_cannot_tell_an_unknown_user_from_a_wrong_password() -> None:
    texts, answers = set(), []
    for user in ("shop.checkout", "shop.nobody"):
        server, client = exchange(), ScramClient(SHA_256, user, "pencil")
        answers.append((await server.step(client.first)).answer)
        with pytest.raises(AuthenticationError) as caught:
            await server.step(client.final(answers[-1]))
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert [answer.decode().split(",")[::2] for answer in answers] == [["r=client-noncebroker-nonce", "i=8192"]] * 2
    assert caught.value.reason == "user 'shop.nobody' has no credential"


def test_an_unknown_user_always_has_the_same_salt() -> None:
    one, other = (CredentialKey(user, SHA_512) for user in ("shop.nobody", "shop.other"))
    decoy, stored = credentials().find(one)
    assert not stored
    assert credentials().find(one) == (decoy, False)
    assert len(decoy.salt) == scram.DECOY_SALT_BYTES
    assert len(decoy.stored_key) == len(decoy.server_key) == 64
    salts = {
        decoy.salt,
        credentials().find(other)[0].salt,
        Credentials(STORED.get, lambda: b"another").find(one)[0].salt,
    }
    assert len(salts) == 3


async def test_the_keys_of_a_decoy_authenticate_nobody() -> None:
    """A client that learns the secret of decoys still has no credential."""
    key = CredentialKey("shop.nobody", SHA_256)
    always = made(key)

    class Known(Credentials):
        def find(self, *keys: CredentialKey) -> tuple[ScramCredential, bool]:
            return always, False

    server = ScramExchange(SHA_256, Known(STORED.get, secret))
    with pytest.raises(AuthenticationError):
        await log_in(server, ScramClient(SHA_256, "shop.nobody"))
    with ThreadPoolExecutor(1) as executor, pytest.raises(AuthenticationError):
        await PlainExchange(Known(STORED.get, secret), executor).step(f"\0shop.nobody\0{PASSWORD}".encode())


async def test_the_last_message_of_another_exchange_fails() -> None:
    client = ScramClient(SHA_256, "shop.checkout")
    server = exchange()
    final = client.final((await server.step(client.first)).answer)
    assert (await server.step(final)).principal
    replayed = exchange(nonce="other-nonce")
    await replayed.step(client.first)
    with pytest.raises(AuthenticationError) as caught:
        await replayed.step(final)
    assert caught.value.reason.endswith("belongs to another exchange")


async def test_two_exchanges_have_different_nonces() -> None:
    client = ScramClient(SHA_256, "shop.checkout")
    answers = {(await ScramExchange(SHA_256, credentials()).step(client.first)).answer for _ in range(10)}
    assert len(answers) == 10


async def test_an_exchange_ends_with_its_last_message_and_with_a_failure() -> None:
    server, client = exchange(), ScramClient(SHA_256, "shop.checkout")
    final = client.final((await server.step(client.first)).answer)
    await server.step(final)
    for message in (final, client.first):
        with pytest.raises(AuthenticationError, match="credentials"):
            await server.step(message)
    failed = exchange()
    await failed.step(client.first)
    for message in (b"c=biws", final):
        with pytest.raises(AuthenticationError, match="credentials"):
            await failed.step(message)


FIRST = {
    "nothing": b"",
    "channel binding": b"p=tls-unique,,n=user,r=abc",
    "no header": b"n=user,r=abc",
    "unknown header": b"x,,n=user,r=abc",
    "a mandatory extension": b"n,,m=ext,n=user,r=abc",
    "no user": b"n,,n=,r=abc",
    "no nonce": b"n,,n=user,r=",
    "a wrong escape": b"n,,n=us=2Der,r=abc",
    "an open escape": b"n,,n=user=,r=abc",
    "a control character in the name": b"n,,n=us\x00er,r=abc",
    "a line in the name": b"n,,n=us\ner,r=abc",
    "a line at the end": b"n,,n=user,r=abc\n",
    "a space in the nonce": b"n,,n=user,r=a bc",
    "another user": b"n,a=admin,n=shop.checkout,r=abc",
    "a delegation token": b"n,,n=shop.checkout,r=abc,tokenauth=true",
    "a delegation token after an extension": b"n,,n=shop.checkout,r=abc,x=1,tokenauth=TRUE,y=2",
    "bytes that are not UTF-8": b"n,,n=\xff\xfe,r=abc",
    "a surrogate": b"n,,n=\xed\xa0\x80,r=abc",
    "a large message": b"n,,n=user,r=" + b"a" * 5000,
    "the last message": b"c=biws,r=abc,p=AAAA",
}


@pytest.mark.parametrize("message", FIRST.values(), ids=FIRST.keys())
async def test_a_malformed_first_message_fails(message: bytes) -> None:
    with pytest.raises(AuthenticationError):
        await exchange().step(message)


PROOF = base64.b64encode(bytes(32))
FINAL = {
    "nothing": b"",
    "the wrong channel binding": b"c=eSws,r=%b,p=" + PROOF,
    "no channel binding": b"c=,r=%b,p=" + PROOF,
    "no proof": b"c=biws,r=%b",
    "an empty proof": b"c=biws,r=%b,p=",
    "a short proof": b"c=biws,r=%b,p=AAAA",
    "a proof that is not base64": b"c=biws,r=%b,p=A",
    "a binding that is not base64": b"c=b,r=%b,p=" + PROOF,
    "something after the proof": b"c=biws,r=%b,p=" + PROOF + b",x=1",
    "only a part of the nonce": b"c=biws,r=client-nonce,p=" + PROOF,
    "more than the nonce": b"c=biws,r=x%b,p=" + PROOF,
    "a large message": b"c=biws,r=%b,x=" + b"a" * 5000 + b",p=" + PROOF,
    "bytes that are not UTF-8": b"c=biws,r=%b,x=\xff,p=" + PROOF,
}


@pytest.mark.parametrize("message", FINAL.values(), ids=FINAL.keys())
async def test_a_malformed_last_message_fails(message: bytes) -> None:
    server = exchange()
    await server.step(ScramClient(SHA_256, "shop.checkout").first)
    with pytest.raises(AuthenticationError):
        await server.step(message.replace(b"%b", b"client-noncebroker-nonce"))


async def test_an_extension_of_the_last_message_is_signed() -> None:
    server, client = exchange(), ScramClient(SHA_256, "shop.checkout")
    final = client.final((await server.step(client.first)).answer)
    with pytest.raises(AuthenticationError):
        await server.step(final.replace(b",p=", b",x=1,p="))


def mutated(message: bytes, randomness: random.Random) -> bytes:
    data = bytearray(message)
    for _ in range(randomness.randint(1, 4)):
        place = randomness.randrange(len(data) + 1)
        match randomness.randrange(5):
            case 0:
                del data[place:]
            case 1:
                data[place:place] = randomness.choice(
                    [b",", b"=", b"\0", b"\xff", b"n,,", b"a" * 5000, b"=2C", b"\xe2"]
                )
            case 2:
                del data[place : place + randomness.randint(1, 8)]
            case 3 if place < len(data):
                data[place] = randomness.randrange(256)
            case _:
                data += data[: randomness.randint(0, 64)]
    return bytes(data)


def exchanges(executor: ThreadPoolExecutor) -> Iterator[tuple[Exchange, bytes]]:
    for mechanism in ScramMechanism:
        yield exchange(mechanism), ScramClient(mechanism, "shop.checkout").first
    yield PlainExchange(Credentials(STORED.get, secret, iterations=1), executor), f"\0shop.unknown\0{PASSWORD}".encode()


@pytest.mark.parametrize("seed", range(4))
async def test_no_message_causes_another_error(seed: int) -> None:
    randomness, failures = random.Random(seed), 0
    finals, texts = {}, set()
    for mechanism in ScramMechanism:
        client = ScramClient(mechanism, "shop.checkout")
        finals[client.first] = client.final((await exchange(mechanism).step(client.first)).answer)
    with ThreadPoolExecutor(1) as executor:
        for _ in range(500):
            for server, first in exchanges(executor):
                final = finals.get(first, b"")
                messages = [(mutated(first, randomness), final), (first, mutated(final, randomness))]
                try:
                    for message in randomness.choice(messages):
                        await server.step(message)
                except AuthenticationError as error:
                    failures += 1
                    texts.add(str(error))
    assert failures > 1_000
    assert len(texts) == 2, "one text for SCRAM, and one for PLAIN"


@pytest.mark.parametrize("other", ["", "shop.checkout"])
async def test_plain_checks_the_password_of_the_scram_credential(other: str) -> None:
    with ThreadPoolExecutor(1) as executor:
        step = await PlainExchange(credentials(), executor).step(f"{other}\0shop.checkout\0{PASSWORD}".encode())
    assert step == Step(b"", "User:shop.checkout", credential=step.credential)
    assert step.credential is not None
    assert step.credential.key == CredentialKey("shop.checkout", SHA_512)


async def test_plain_uses_sha_256_if_the_user_has_nothing_else() -> None:
    key = CredentialKey("shop.old", SHA_256)
    with ThreadPoolExecutor(1) as executor:
        old = PlainExchange(Credentials({key: made(key)}.get, secret), executor)
        assert (await old.step(f"\0shop.old\0{PASSWORD}".encode())).credential == made(key)


PLAIN = {
    "nothing": b"",
    "one field": b"shop.checkout",
    "two fields": b"shop.checkout\0pencil",
    "four fields": b"\0shop.checkout\0pencil\0",
    "no user": b"\0\0pencil",
    "no password": b"\0shop.checkout\0",
    "another user": b"admin\0shop.checkout\0" + PASSWORD.encode(),
    "a line in the name": b"\0shop\ncheckout\0pencil",
    "a name that is not UTF-8": b"\0\xff\xfe\0pencil",
    "a password that is not UTF-8": b"\0shop.checkout\0\xed\xa0\x80",
    "a large password": b"\0shop.checkout\0" + b"a" * plain.MOST_BYTES,
    "a wrong password": b"\0shop.checkout\0pencil",
    "an unknown user": b"\0shop.nobody\0" + PASSWORD.encode(),
}


@pytest.mark.parametrize("message", PLAIN.values(), ids=PLAIN.keys())
async def test_plain_rejects_other_messages_with_one_text(message: bytes) -> None:
    with ThreadPoolExecutor(1) as executor:
        server = PlainExchange(credentials(), executor)
        with pytest.raises(
            AuthenticationError, match="the broker does not accept the user name and the password"
        ) as caught:
            await server.step(message)
        assert "pencil" not in caught.value.reason
        with pytest.raises(AuthenticationError):
            await server.step(f"\0shop.checkout\0{PASSWORD}".encode())


async def test_an_unknown_user_costs_the_hash_of_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def counted(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        hashed.append((digest, iterations))
        return bytes(64)

    monkeypatch.setattr("firn_broker.access.mechanisms.plain.hashlib.pbkdf2_hmac", counted)
    with ThreadPoolExecutor(1) as executor:
        for user in ("shop.checkout", "shop.nobody"):
            with pytest.raises(AuthenticationError):
                await PlainExchange(credentials(), executor).step(f"\0{user}\0pencil".encode())
    assert hashed == [("sha512", ITERATIONS)] * 2
