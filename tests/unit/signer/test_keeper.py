"""The signer keeps CAs and certificates: what it makes, when it renews, and what survives a crash."""

import asyncio
import random
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from firn.model import names
from firn.model.clock import SystemClock
from firn.model.config import Config
from firn.model.errors import ConflictError, CorruptDataError, FirnError, InvalidSpecError
from firn_controllers.trust.renewal import Terms
from firn_operator.process import telemetry
from firn_operator.signer import certificates, process
from firn_operator.signer.keeper import STORES, Keeper
from firn_operator.signer.process import Passes
from tests import gen
from tests.fakes.clock import FakeClock
from tests.fakes.users.certificate_secrets import FakeCertificateSecrets

PROFILE = "waves"
LEAF, CA = names.brokers_certificate(PROFILE), names.authority(PROFILE)
PODS, BOOTSTRAP = "*.firn-broker-waves.firn-system.svc", "firn-broker-waves-bootstrap.firn-system.svc"
DAY = timedelta(days=1)
TERMS = Terms((PODS, BOOTSTRAP), 90 * DAY, 30 * DAY, 3650 * DAY)


class Stage:
    """A signer over Secrets in memory, with a clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.secrets = FakeCertificateSecrets()
        self.keeper = Keeper(self.secrets, self.clock)

    def data(self, name: str = LEAF) -> dict[str, str]:
        return dict(self.secrets.secrets[name].data)

    async def keep(self, terms: Terms = TERMS) -> None:
        await self.keeper.keep(PROFILE, terms)

    def after(self, time: timedelta) -> None:
        self.clock.advance(time.total_seconds())


@pytest.fixture
def stage() -> Stage:
    return Stage()


def config(certificate: dict[str, Any], **profile: Any) -> Config:
    access = {"certificate": certificate}
    return gen.config(profiles={"classic": {}, PROFILE: gen.diskless(access=access, **profile)})


async def test_the_first_pass_makes_a_ca_and_a_certificate_and_the_second_nothing(stage: Stage) -> None:
    await stage.keep()
    made = {name: stage.data(name) for name in (CA, LEAF)}
    assert made[CA].keys() == {"ca.crt", "ca.key", "generation"}
    assert made[LEAF].keys() == {"ca.crt", "ca.since", "tls.crt", "tls.key"}
    assert made[LEAF]["ca.crt"] == made[CA]["ca.crt"]
    assert "ca.key" not in made[LEAF], "brokers do not get the key of the CA"
    await stage.keep()
    assert stage.secrets.writes == 2


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory with what the signer makes now, and the CA of another signer."""
    secrets, clock = FakeCertificateSecrets(), SystemClock()
    asyncio.run(Keeper(secrets, clock).keep(PROFILE, TERMS))
    for key, value in secrets.secrets[LEAF].data.items():
        (tmp_path / key).write_text(value)
    (tmp_path / "other.crt").write_text(certificates.new_authority("other", clock.now(), DAY).certificate)
    return tmp_path


def handshake(files: Path, host: str, authority: str) -> str:
    """Connect to a server with the certificate as a client of ``host``, and return what the client finds."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files / "tls.crt", files / "tls.key")
    client = ssl.create_default_context(cafile=str(files / authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()

    def accept() -> None:
        with far, suppress(OSError):
            server.wrap_socket(far, server_side=True)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=host):
            return "verified"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        near.close()
        thread.join(10)


def test_clients_verify_the_certificate_and_the_names_of_brokers(files: Path) -> None:
    assert handshake(files, "firn-broker-waves-2.firn-broker-waves.firn-system.svc", "ca.crt") == "verified"
    assert handshake(files, BOOTSTRAP, "ca.crt") == "verified"
    assert "mismatch" in handshake(files, "firn-broker-others-bootstrap.firn-system.svc", "ca.crt")
    assert handshake(files, BOOTSTRAP, "other.crt") != "verified"


async def test_stores_have_cas_and_certificates_of_their_own_which_are_renewed() -> None:
    secrets, clock = FakeCertificateSecrets(), FakeClock()
    keeper, subjects = Keeper(secrets, clock, STORES), process.store_subjects("lake", ("postgres", "s3"))
    passes = Passes(keeper, subjects, clock)
    await passes.one()
    made = {name: dict(secret.data) for name, secret in secrets.secrets.items()}
    assert made.keys() == {"firn-postgres-signer", "firn-postgres-tls", "firn-s3-signer", "firn-s3-tls"}
    assert made["firn-postgres-tls"]["ca.crt"] != made["firn-s3-tls"]["ca.crt"]
    hosts = certificates.hosts_of(made["firn-postgres-tls"]["tls.crt"])
    assert {"firn-postgres", "firn-postgres.lake.svc", "firn-postgres.lake.svc.cluster.local", "localhost"} <= hosts
    (family,) = telemetry.StoreCertificateMetrics(lambda: passes.ends, clock.now).collect()
    ends = {(sample.labels["store"], sample.labels["certificate"]): sample.value for sample in family.samples}
    assert ends.keys() == {(store, which) for store in ("postgres", "s3") for which in ("server", "authority")}
    assert ends["s3", "server"] == pytest.approx(90 * 86400, abs=1)

    clock.advance((60 * DAY).total_seconds() + 1)
    await passes.one()
    renewed = {name: dict(secret.data) for name, secret in secrets.secrets.items()}
    for name in ("firn-postgres-tls", "firn-s3-tls"):
        assert renewed[name]["tls.crt"] != made[name]["tls.crt"]
        assert renewed[name]["ca.crt"] == made[name]["ca.crt"], "clients need nothing new"


def test_openssl_verifies_the_certificate(files: Path) -> None:
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", BOOTSTRAP]
    found = subprocess.run(
        [*command, "-CAfile", str(files / "ca.crt"), str(files / "tls.crt")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr


async def test_a_certificate_is_renewed_before_its_end_by_the_same_ca(stage: Stage) -> None:
    await stage.keep()
    first, authority = stage.data(), stage.data(CA)
    stage.after(59 * DAY)
    await stage.keep()
    assert stage.data() == first
    stage.after(2 * DAY)
    await stage.keep()
    second = stage.data()
    assert second["tls.crt"] != first["tls.crt"]
    assert second["tls.key"] != first["tls.key"]
    assert second["ca.crt"] == first["ca.crt"]
    assert stage.data(CA) == authority
    assert certificates.ends(second["tls.crt"]) > stage.clock.now() + 89 * DAY


@pytest.mark.parametrize(
    "changed",
    [
        Terms((PODS, BOOTSTRAP, "kafka.example.com"), 90 * DAY, 30 * DAY, 3650 * DAY),
        Terms((PODS, BOOTSTRAP, "192.0.2.7"), 90 * DAY, 30 * DAY, 3650 * DAY),
        Terms((PODS, BOOTSTRAP), 10 * DAY, 3 * DAY, 3650 * DAY),
    ],
)
async def test_changed_terms_replace_the_certificate_once(stage: Stage, changed: Terms) -> None:
    await stage.keep()
    before = stage.data()
    stage.after(DAY)
    await stage.keep(changed)
    after = stage.data()
    assert after["tls.crt"] != before["tls.crt"]
    assert certificates.hosts_of(after["tls.crt"]) == set(changed.hosts)
    await stage.keep(changed)
    assert stage.data() == after


@pytest.mark.parametrize("broken", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("value", [None, "no PEM"])
async def test_a_damaged_certificate_is_replaced(stage: Stage, broken: str, value: str | None) -> None:
    await stage.keep()
    authority, data = stage.data(CA), stage.data()
    stage.secrets.put(LEAF, {key: value or "" if key == broken else text for key, text in data.items()}, own=True)
    await stage.keep()
    repaired = stage.data()
    assert certificates.fits(certificates.Pair(repaired["tls.crt"], repaired["tls.key"]))
    assert certificates.signed_by(repaired["tls.crt"], authority["ca.crt"])
    assert repaired["ca.crt"] == authority["ca.crt"]


@pytest.mark.parametrize("foreign", ["certificate", "key"])
async def test_a_certificate_of_another_ca_or_with_another_key_is_replaced(stage: Stage, foreign: str) -> None:
    await stage.keep()
    now, authority = stage.clock.now(), stage.data(CA)
    own = certificates.Pair(authority["ca.crt"], authority["ca.key"])
    signer = certificates.new_authority("other", now, TERMS.authority_lifetime) if foreign == "certificate" else own
    made = certificates.issue(signer, "brokers", TERMS.hosts, now, TERMS.lifetime)
    key = stage.data()["tls.key"] if foreign == "key" else made.key
    stage.secrets.put(LEAF, {**stage.data(), "tls.crt": made.certificate, "tls.key": key}, own=True)
    await stage.keep()
    assert stage.data()["tls.crt"] != made.certificate
    assert certificates.signed_by(stage.data()["tls.crt"], authority["ca.crt"])


async def test_a_deleted_certificate_is_issued_again_by_the_same_ca(stage: Stage) -> None:
    await stage.keep()
    authority = stage.data(CA)
    del stage.secrets.secrets[LEAF]
    await stage.keep()
    assert stage.data()["ca.crt"] == authority["ca.crt"]
    assert stage.data(CA) == authority


@pytest.mark.parametrize("broken", ["ca.crt", "ca.key"])
@pytest.mark.parametrize("value", ["", "no PEM", "of another"])
async def test_a_damaged_ca_is_reported_and_not_replaced(stage: Stage, broken: str, value: str) -> None:
    await stage.keep()
    other = certificates.new_authority("other", stage.clock.now(), DAY)
    text = {"ca.crt": other.certificate, "ca.key": other.key}[broken] if value == "of another" else value
    damaged = {**stage.data(CA), broken: text}
    stage.secrets.put(CA, damaged, own=True)
    leaf = stage.data()
    with pytest.raises(CorruptDataError, match="Secret firn-signer-waves: .*restore it from a backup") as caught:
        await stage.keep()
    assert "PRIVATE" not in str(caught.value)
    assert (stage.data(CA), stage.data()) == (damaged, leaf)


@pytest.mark.parametrize("name", [CA, LEAF])
async def test_a_secret_of_another_client_is_reported_and_not_replaced(stage: Stage, name: str) -> None:
    stage.secrets.put(name, {"tls.crt": "mine"}, own=False)
    with pytest.raises(ConflictError, match=f"Secret {name} exists, and no signer created it"):
        await stage.keep()
    assert stage.data(name) == {"tls.crt": "mine"}


async def test_a_signer_that_ends_between_any_two_writes_continues(stage: Stage) -> None:
    """Years of passes with crashes at random writes: clients always find a valid certificate of the CA that they know."""
    chance = random.Random(20261129)
    await stage.keep()
    trusted = stage.data()["ca.crt"]
    renewed = set()
    for _ in range(200):
        stage.after(DAY * chance.randint(1, 9))
        stage.secrets.lost_after = stage.secrets.writes + chance.randint(0, 1)
        if chance.random() < 0.1:
            stage.secrets.secrets.pop(LEAF, None)
        with suppress(FirnError):
            await Keeper(stage.secrets, stage.clock).keep(PROFILE, TERMS)
        stage.secrets.lost_after = None
        await Keeper(stage.secrets, stage.clock).keep(PROFILE, TERMS)
        live = stage.data()
        assert live["ca.crt"] == trusted
        assert certificates.signed_by(live["tls.crt"], trusted)
        assert certificates.ends(live["tls.crt"]) > stage.clock.now() + 30 * DAY - timedelta(seconds=1)
        renewed.add(live["tls.crt"])
    assert len(renewed) > 10


async def test_a_certificate_ends_with_its_ca_and_is_not_issued_again_and_again(stage: Stage) -> None:
    terms = Terms((PODS,), 90 * DAY, 30 * DAY, 200 * DAY)
    await stage.keep(terms)
    authority = stage.data(CA)
    for _ in range(199):
        stage.after(DAY)
        await stage.keep(terms)
    assert stage.data(CA) == authority
    assert stage.secrets.writes == 4, "a CA, and certificates after 0, 60 and 120 days"
    assert certificates.ends(stage.data()["tls.crt"]) == certificates.ends(authority["ca.crt"])
    stage.after(2 * DAY)
    await stage.keep(terms)
    assert stage.data(CA)["ca.crt"] != authority["ca.crt"], "after the end of the CA, no client can connect anyway"


MINUTE = timedelta(minutes=1)
SECOND = {stage: replace(TERMS, generation=2, stage=stage) for stage in ("Trust", "Issue", "Finish")}


def authorities(bundle: str) -> list[str]:
    """Return the certificates of a bundle."""
    end = "-----END CERTIFICATE-----\n"
    return [part + end for part in bundle.split(end) if part]


def verifies(bundle: str, leaf: str) -> bool:
    """Return whether a client with these CAs accepts the certificate."""
    return any(certificates.signed_by(leaf, authority) for authority in authorities(bundle))


async def test_a_ca_is_replaced_in_three_stages(stage: Stage) -> None:
    await stage.keep()
    first = stage.data()
    await stage.keep(SECOND["Trust"])
    trusted = stage.data()
    assert len(authorities(trusted["ca.crt"])) == 2
    assert (verifies(trusted["ca.crt"], first["tls.crt"]), trusted["tls.crt"]) == (True, first["tls.crt"])
    stage.after(DAY)
    await stage.keep(SECOND["Trust"])
    assert stage.data() == trusted, "the stage waits for the administrator"
    await stage.keep(SECOND["Issue"])
    issued = stage.data()
    assert issued["ca.crt"] == trusted["ca.crt"], "drivers do not restart at this step"
    assert not verifies(first["ca.crt"], issued["tls.crt"])
    stage.after(DAY)
    await stage.keep(SECOND["Issue"])
    assert stage.data() == issued
    await stage.keep(SECOND["Finish"])
    finished = stage.data()
    assert (len(authorities(finished["ca.crt"])), finished["tls.crt"]) == (1, issued["tls.crt"])
    assert not verifies(finished["ca.crt"], first["tls.crt"])
    assert stage.data(CA).keys() == {"ca.crt", "ca.key", "generation"}
    assert stage.data(CA)["generation"] == "2"
    stage.after(DAY)
    await stage.keep(SECOND["Finish"])
    assert stage.data() == finished


async def test_stages_that_follow_at_once_wait_for_the_age_of_the_stage_before(stage: Stage) -> None:
    await stage.keep()
    seen = []
    for _ in range(40):
        stage.after(MINUTE)
        await stage.keep(SECOND["Finish"])
        state = stage.data(CA)
        seen.append("next" if "next.crt" in state else "both" if "previous.crt" in state else "done")
    assert (seen.count("next"), seen.count("both")) == (15, 15)
    assert seen == sorted(seen, key=["next", "both", "done"].index)


async def test_a_stage_is_as_old_as_what_clients_have_and_not_as_the_ca(stage: Stage) -> None:
    await stage.keep()
    stage.secrets.lost_after = stage.secrets.writes + 1
    with suppress(FirnError):
        await stage.keep(SECOND["Finish"])
    stage.secrets.lost_after = None
    assert "next.crt" in stage.data(CA)
    stage.after(DAY)
    await stage.keep(SECOND["Finish"])
    assert len(authorities(stage.data()["ca.crt"])) == 2
    stage.after(MINUTE)
    await stage.keep(SECOND["Finish"])
    assert "next.crt" in stage.data(CA), "clients have had the next CA for a minute only"


async def test_a_rollover_can_be_abandoned_before_its_ca_signs(stage: Stage) -> None:
    await stage.keep()
    first = stage.data()
    await stage.keep(SECOND["Trust"])
    await stage.keep()
    assert {**stage.data(), "ca.since": ""} == {**first, "ca.since": ""}
    assert "next.key" not in stage.data(CA)


@pytest.mark.parametrize("generation", [1, 3, 4])
async def test_a_generation_that_cannot_follow_is_refused_and_certificates_are_renewed_anyway(
    stage: Stage, generation: int
) -> None:
    await stage.keep(replace(TERMS, generation=2))
    await stage.keep(replace(TERMS, generation=3, stage="Trust"))
    stage.after(DAY)
    await stage.keep(replace(TERMS, generation=3, stage="Issue"))
    wrong = replace(TERMS, generation=generation, stage="Issue")
    before = stage.data()
    stage.after(70 * DAY)
    if generation == 3:
        await stage.keep(wrong)
    else:
        with pytest.raises(InvalidSpecError, match=f"generation is {generation}, and the CA has generation 3; set 3"):
            await stage.keep(wrong)
    assert stage.data()["tls.crt"] != before["tls.crt"]
    assert stage.data()["ca.crt"] == before["ca.crt"]


@pytest.mark.parametrize("seed", range(2))
async def test_clients_and_brokers_with_old_files_understand_each_other_in_every_rollover(seed: int) -> None:
    """The signer ends between any two writes. Pods see each file up to five minutes late, each at its own time."""
    chance, stage = random.Random(seed), Stage()
    await stage.keep()
    history, generation = [stage.data()], 1
    for _ in range(150):
        rolling = "next.crt" in stage.data(CA) or "previous.crt" in stage.data(CA)
        if not rolling and stage.data(CA)["generation"] == str(generation):
            generation += 1
        terms = replace(TERMS, generation=generation, stage="Finish")
        stage.after(MINUTE)
        stage.secrets.lost_after = stage.secrets.writes + chance.randint(0, 1) if chance.random() < 0.5 else None
        with suppress(FirnError):
            await Keeper(stage.secrets, stage.clock).keep(PROFILE, terms)
        history = [*history[-4:], stage.data()]
        for other in history:
            assert verifies(history[-1]["ca.crt"], other["tls.crt"])
            assert verifies(other["ca.crt"], history[-1]["tls.crt"])
    assert generation > 4, "the story has several rollovers"


def test_the_certificate_names_everything_that_brokers_advertise() -> None:
    external = {"type": "LoadBalancer", "hosts": ["b0.example.com", "192.0.2.7"]}
    more = config({"selfSigned": {}, "names": ["kafka.example.com", "2001:DB8:0::1"]}, external=external)
    (terms,) = process.subjects(more).values()
    assert set(terms.hosts) == {PODS, BOOTSTRAP, "b0.example.com", "192.0.2.7", "kafka.example.com", "2001:db8::1"}
    nodes = config({"selfSigned": {}}, external={"type": "NodePort", "host": "kafka.example.com"})
    assert "kafka.example.com" in process.subjects(nodes)[PROFILE].hosts
    unknown = config({"selfSigned": {}}, external={"type": "NodePort"})
    assert set(process.subjects(unknown)[PROFILE].hosts) == {PODS, BOOTSTRAP}
    assert process.subjects(config({"secret": "mine"})) == {}
    with pytest.raises(InvalidSpecError, match=r"profiles\.waves\.external: 'a b' is neither a DNS name"):
        process.subjects(config({"selfSigned": {}}, external={"type": "NodePort", "host": "a b"}))


async def test_an_issued_certificate_fits_the_terms_of_addresses(stage: Stage) -> None:
    terms = Terms((PODS, "192.0.2.7", "2001:db8::1"), 90 * DAY, 30 * DAY, 3650 * DAY)
    await stage.keep(terms)
    await stage.keep(terms)
    assert stage.secrets.writes == 2
    authority = certificates.certificate(stage.data(CA)["ca.crt"])
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert (limits.value.ca, limits.value.path_length) == (True, 0)


async def test_one_failing_profile_does_not_stop_another(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.secrets.put(names.authority("a"), {}, own=False)
    passes = Passes(stage.keeper, {"a": TERMS, PROFILE: TERMS}, stage.clock)
    assert await passes.one() < process.INTERVAL
    assert await passes.one() < process.INTERVAL
    assert (
        len([record for record in caplog.records if record.levelname == "WARNING" and "profile a:" in record.message])
        == 1
    )
    (family,) = telemetry.CertificateMetrics(lambda: passes.ends, stage.clock.now).collect()
    assert {tuple(sample.labels.values()): sample.value for sample in family.samples} == {
        (PROFILE, "brokers"): pytest.approx(90 * 86400, abs=1),
        (PROFILE, "authority"): pytest.approx(3650 * 86400, abs=1),
    }
    del stage.secrets.secrets[names.authority("a")]
    assert await passes.one() == process.INTERVAL
    assert not passes.stuck
    stage.clock.advance(601)
    assert passes.stuck


async def test_no_log_has_a_key(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    await stage.keep()
    secret = next(line for line in stage.data(CA)["ca.key"].splitlines() if not line.startswith("-"))
    assert "issues a certificate" in caplog.text
    assert secret not in caplog.text
    assert secret not in repr(await stage.secrets.read(CA))
