"""Changes of the source of brokers' certificates: brokers and Firn's clients trust each certificate before brokers present it."""

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from firn.model import names
from firn.model.config import Config
from firn.model.errors import UnavailableError
from firn.model.jobs import GroupSettings
from firn_controllers import children
from firn_controllers.children import Owner
from firn_controllers.fleet import certificate, kinds
from firn_controllers.fleet.access import SOURCES
from firn_controllers.fleet.diskless import config_map as diskless_config_map
from firn_controllers.fleet.diskless.layout import DisklessFleet
from firn_controllers.fleet.kafka import config_map, metadata_version, stateful_set
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.ports import CertificateState
from firn_controllers.trust.renewal import STAGE_AGE
from firn_controllers.trust.sources import Decision, Held, Sources, next_sources, settled
from firn_operator.signer import process
from tests import gen
from tests.fakes.faults import Killed
from tests.fakes.world import World
from tests.gen import NOW

OWNER = Owner("firn-system", "config-uid")
SOURCE: dict[str, dict[str, Any]] = {
    "own": {"secret": "own"},
    "firn-broker-PROFILE-tls": {"selfSigned": {}},
    "firn-broker-PROFILE-tls-lake-ca": {"certManager": {"name": "lake-ca"}},
}
"""Name of the Secret -> its source."""
OWN, SIGNER, ISSUER = SOURCE
CLIENTS = {"authentication": ["ScramSha512", "OAuth", "Certificate"], "clientCa": {"secret": "clients"}}
OF_CLIENTS = names.trust_file("secret", "clients", "ca.crt")
AGE = STAGE_AGE.total_seconds()
CASES = [("classic", OWN, SIGNER), ("classic", SIGNER, ISSUER), ("waves", ISSUER, OWN)]


def config(profile: str, secret: str, previous: str | None = None, stage: str = "Trust", **more: Any) -> Config:
    """Return a configuration in which the certificate of a profile is in ``secret``, and was in ``previous``."""
    before = {} if previous is None else {"previous": SOURCE[previous], "stage": stage}
    access = {"certificate": {**SOURCE[secret], **before}, "issuer": "https://cluster", **CLIENTS}
    brokers = {"replicas": 3, "access": access, **more}
    profiles = {"classic": {}, "waves": gen.diskless()} | {
        profile: gen.diskless(**brokers) if profile == "waves" else brokers
    }
    return gen.config(profiles=profiles, users={"enabled": True})


class Stage:
    """A world with three brokers of a profile, a driver, and the Secrets of all sources."""

    def __init__(self, profile: str, secret: str) -> None:
        self.profile, self.name = profile, names.fleet(profile)
        self.authorities = {self.secret(each): f"CA of {each}" for each in SOURCE}
        self.templates: dict[str, tuple[str, frozenset[str]]] = {}
        """Hash of a template -> the Secret of the certificate of its brokers, and the CAs by which these verify each other."""
        self.world = World(config(profile, secret, users={}))
        self.world.certificates.states[self.secret(ISSUER)] = CertificateState(ready=True)
        self.configured(secret)
        self.world.cluster.create(gen.topic(profile=profile))

    def secret(self, source: str) -> str:
        return source.replace("PROFILE", self.profile)

    def configured(self, secret: str, previous: str | None = None, stage: str = "Trust") -> None:
        """Start an operator with this configuration, as an upgrade of the release does."""
        self.mount(config(self.profile, secret, previous, stage, users={}))
        self.world.start(self.world.config)

    def mount(self, wanted: Config) -> None:
        self.world.config = wanted
        trusted = wanted.closed_profiles[self.profile].certificate.trusted(self.profile)
        self.world.authorities.sources = {self.profile: [self.authorities[secret] for secret in trusted]}
        self.world.authorities.pem = "\n".join(sorted(self.authorities[secret] for secret in trusted))

    @property
    def live(self) -> dict[str, Any]:
        return self.world.cluster.objects["apps/v1", "StatefulSet", "firn-system", self.name]

    @property
    def sources(self) -> Sources:
        return Sources.read(self.live["metadata"]["annotations"][SOURCES])

    @property
    def degraded(self) -> str:
        return self.world.operator.board.fleet(self.profile).degraded

    def events(self) -> list[str]:
        return [text for _, reason, text in self.world.cluster.events if reason == "CertificateStage"]

    def presented(self) -> set[str]:
        """Return the Secrets of the certificates that brokers have."""
        return {self.held(pod.template_hash or "")[0] for pod in self.pods()}

    def trusted(self) -> set[frozenset[str]]:
        """Return the CAs by which brokers verify each other, for each broker. Diskless brokers have none."""
        return {self.held(pod.template_hash or "")[1] for pod in self.pods()}

    def pods(self) -> list[Any]:
        return [pod for name, pod in self.world.cluster.pod_states.items() if name.rsplit("-", 1)[0] == self.name]

    def held(self, hash_: str) -> tuple[str, frozenset[str]]:
        """Return what brokers of a template have."""
        live = self.live
        if children.template_hash(live) == hash_:
            newest = self.sources.newest
            spec = live["spec"]["template"]["spec"]
            mounted = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
            assert newest.presents in mounted
            bundles = [volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume]
            found = [name for name in bundles if "-authorities-" in name]
            trusted = {self.authorities[newest.presents]} if self.profile == "classic" else set()
            if found:
                assert self.profile == "classic"
                text = self.world.cluster.objects["v1", "ConfigMap", "firn-system", found[0]]["data"]["ca.crt"]
                trusted = set(text.splitlines())
            self.templates[hash_] = (newest.presents, frozenset(trusted))
        return self.templates[hash_]

    def driver_trusts(self) -> set[str]:
        """Return the Secrets whose CAs the driver mounts."""
        live = self.world.cluster.objects["apps/v1", "StatefulSet", "firn-system", "firn-ingest-default"]
        return certificates_of(live) & self.authorities.keys()

    def check(self) -> None:
        """Check that brokers trust each other, that the driver trusts them, and that no broker lacks its ConfigMap."""
        for presented in self.presented():
            for trusted in self.trusted():
                assert self.authorities[presented] in trusted or self.profile == "waves"
            assert presented in self.driver_trusts()
        assert sum(pod.ready for pod in self.pods()) >= 2

    async def step(self, seconds: float = 5.0) -> None:
        """Let everything move once."""
        await self.world.operator_only()
        self.held(children.template_hash(self.live))
        self.world.cluster.run_pods()
        self.check()
        self.world.clock.advance(seconds)

    async def run(self, *, age: float = 0.0, restarts: bool = False) -> None:
        """Let everything move for as long as three brokers need. ``age``: seconds after which the rest follows."""
        for part in range(2 if age else 1):
            if part:
                self.world.clock.advance(age)
            for _ in range(18):
                if restarts:
                    self.world.start()
                await self.step()


def certificates_of(manifest: Mapping[str, Any]) -> set[str]:
    volumes = manifest["spec"]["template"]["spec"]["volumes"]
    sources = [source for volume in volumes for source in volume.get("projected", {}).get("sources", ())]
    return {source["secret"]["name"] for source in sources if "secret" in source}


async def begun(profile: str, secret: str) -> Stage:
    stage = Stage(profile, secret)
    await stage.world.settle()
    stage.held(children.template_hash(stage.live))
    return stage


# The decision

A, B = Held("a", ("a",)), Held("b", ("b",))
TRUST, ISSUE = Held("a", ("a", "b"), "d"), Held("b", ("a", "b"), "d")
OLD = NOW - STAGE_AGE


@pytest.mark.parametrize(
    ("alive", "since", "wanted", "complete", "expected"),
    [
        ([A], None, A, True, [A]),
        ([A], None, TRUST, True, [A, TRUST]),
        ([A, TRUST], None, TRUST, False, [A, TRUST]),
        ([TRUST], OLD, ISSUE, True, [TRUST, ISSUE]),
        ([ISSUE], OLD, B, True, [ISSUE, B]),
        # The configuration skips a stage.
        ([A], None, ISSUE, True, [A, TRUST]),
        ([A], None, B, True, "previous"),
        ([TRUST], OLD, B, True, "previous"),
        ([A, TRUST], None, B, False, "previous"),
        # Gates.
        ([A, TRUST], None, ISSUE, False, "until all brokers"),
        ([TRUST], NOW, ISSUE, True, "15 minutes"),
        ([TRUST], OLD, ISSUE, False, "until all brokers have the stage Trust"),
        ([TRUST, ISSUE], None, B, False, "until all brokers have the present stage"),
        # Changes back, at each moment.
        ([A, TRUST], None, A, False, [TRUST, A]),
        ([TRUST], NOW, A, True, [TRUST, A]),
        ([TRUST, ISSUE], None, TRUST, False, [ISSUE, TRUST]),
        ([TRUST, ISSUE], None, A, False, "previous"),
        ([ISSUE], OLD, TRUST, True, [ISSUE, TRUST]),
        ([ISSUE], NOW, TRUST, True, "15 minutes"),
        ([ISSUE, B], None, ISSUE, False, [B, ISSUE]),
        ([ISSUE, B], None, TRUST, False, [B, ISSUE]),
        ([B], None, A, True, "previous"),
        # Another CA appears in one of the Secrets.
        ([TRUST], OLD, Held("a", ("a", "b"), "other"), True, [TRUST, Held("a", ("a", "b"), "other")]),
    ],
)  # fmt: skip
def test_brokers_of_two_stages_trust_each_other(
    alive: list[Held], since: Any, wanted: Held, complete: bool, expected: list[Held] | str
) -> None:
    decision = next_sources(Sources(tuple(alive), since), wanted, complete=complete, client=None, now=NOW)
    if isinstance(expected, str):
        assert expected in decision.waits + (decision.problem or "")
        assert decision.sources == Sources(tuple(alive), since)
        return
    assert (list(decision.sources.alive), decision.waits, decision.problem) == (expected, "", None)
    assert all(first.accepts(second) for first in expected for second in expected)


def test_a_new_certificate_waits_for_clients_and_a_known_one_does_not() -> None:
    trust = Sources((TRUST,), OLD)
    client = "the driver does not trust both CAs yet; see its pod"
    waiting = next_sources(trust, ISSUE, complete=True, client=client, now=NOW)
    assert waiting == Decision(trust, problem=f"the certificate of Secret b waits, because {client}")
    back = next_sources(Sources((TRUST, ISSUE)), TRUST, complete=False, client=client, now=NOW)
    assert back.sources.newest == TRUST


def test_the_age_of_a_stage_begins_after_the_last_broker_and_survives_the_operator() -> None:
    ended = settled(Sources((A, TRUST)), NOW)
    assert ended == Sources((TRUST,), NOW)
    assert Sources.read(ended.written()) == ended
    assert settled(ended, NOW + timedelta(hours=1)) == ended
    assert settled(Sources((ISSUE, B)), NOW) == Sources((B,))
    for damaged in ("", "[]", "{}", '{"alive": [], "since": null}', '{"alive": [{}], "since": null}'):
        with pytest.raises(ValueError, match=r".*"):
            Sources.read(damaged)


# Whole changes


@pytest.mark.parametrize(
    ("profile", "old", "new", "restarts"), [(*case, number > 0) for number, case in enumerate(CASES)]
)
async def test_a_change_of_the_source_goes_through_three_stages(
    profile: str, old: str, new: str, restarts: bool
) -> None:
    """``restarts``: each step has an operator of its own."""
    stage = await begun(profile, old)
    before, after = stage.secret(old), stage.secret(new)
    plain, verifies = children.template_hash(stage.live), profile == "classic"

    stage.configured(new, old)
    await stage.run(restarts=restarts)
    assert stage.presented() == {before}
    assert stage.trusted() == {frozenset({stage.authorities[before], stage.authorities[after]} if verifies else ())}
    assert (children.template_hash(stage.live) == plain) is not verifies, "only Apache Kafka gets another template"
    both = " and ".join(sorted((before, after)))
    assert (
        f"when all clients trust the CAs of Secrets {both}, set access.certificate.stage to Issue" in stage.events()[-1]
    )
    assert stage.driver_trusts() == {before, after}
    await stage.run(age=AGE, restarts=restarts)
    assert stage.presented() == {before}, "the stage waits for the administrator"

    stage.configured(new, old, "Issue")
    await stage.run(restarts=restarts)
    assert stage.presented() == {after}
    assert "remove access.certificate.previous" in stage.events()[-1]
    issued = children.template_hash(stage.live)

    stage.configured(new)
    await stage.run(restarts=restarts)
    assert stage.sources == Sources.of(after)
    assert stage.trusted() == {frozenset({stage.authorities[after]} if verifies else ())}
    assert stage.driver_trusts() == {after}
    assert children.template_hash(stage.live) != plain
    assert (children.template_hash(stage.live) == issued) is not verifies
    assert "is complete" in stage.events()[-1]
    assert (len(stage.events()), stage.degraded) == (3, "")
    bundles = [place[3] for place in stage.world.cluster.objects if "-authorities-" in place[3]]
    assert bundles == [], "nothing reads the CAs of both sources any more"


async def test_a_configuration_that_asks_for_the_new_certificate_at_once_gets_all_stages() -> None:
    stage = await begun("classic", OWN)
    stage.configured(SIGNER, OWN, "Issue")
    await stage.run()
    assert stage.presented() == {OWN}
    assert len(stage.trusted().pop()) == 2
    stage.world.clock.advance(AGE - 300)
    await stage.run()
    assert stage.presented() == {OWN}
    await stage.run(age=300)
    assert stage.presented() == {stage.secret(SIGNER)}


async def test_a_source_that_changes_without_stages_is_refused_and_nothing_breaks() -> None:
    stage = await begun("classic", SIGNER)
    before = children.template_hash(stage.live)
    stage.configured(OWN)
    await stage.run()
    assert "set access.certificate.previous to the source of Secret firn-broker-classic-tls" in stage.degraded
    assert children.template_hash(stage.live) == before
    assert stage.driver_trusts() == {stage.secret(SIGNER), OWN}
    settings = stage.world.cluster.objects["v1", "ConfigMap", "firn-system", "firn-ingest-default"]
    connection = GroupSettings.model_validate_json(settings["data"]["group.json"]).kafka["classic"]
    assert connection.ca_paths == ("/etc/firn/access/classic/ca.crt", "/etc/firn/access/classic/previous.crt")
    stage.world.topics.problem["classic"] = UnavailableError(
        "the operator does not trust the certificate of the brokers"
    )
    await stage.step(20)
    await stage.step()
    assert "; the brokers keep the certificate" in stage.world.operator.board.fleet("classic").message
    del stage.world.topics.problem["classic"]
    stage.configured(OWN, SIGNER)
    await stage.run()
    assert len(stage.trusted().pop()) == 2
    assert stage.degraded == ""


@pytest.mark.parametrize("steps", [0, 2, 5, 30])
@pytest.mark.parametrize("moment", ["Trust", "Issue"])
async def test_a_change_back_in_the_middle_is_safe(moment: str, steps: int) -> None:
    stage = await begun("classic", OWN)
    stage.configured(SIGNER, OWN)
    if moment == "Issue":
        await stage.run(age=AGE)
        stage.configured(SIGNER, OWN, "Issue")
    for _ in range(steps):
        await stage.step()
    stage.configured(OWN, SIGNER, "Issue")
    await stage.run(age=AGE)
    assert stage.presented() == {OWN}
    stage.configured(OWN)
    await stage.run()
    assert (stage.sources, stage.degraded) == (Sources.of(OWN), "")


@pytest.mark.parametrize(
    ("new", "hint"),
    [
        (OWN, "Secret own has no ca.crt: create it with tls.crt, tls.key and ca.crt"),
        (SIGNER, "firn-signer writes it; see kubectl -n firn-system logs deployment/firn-signer"),
        (ISSUER, "describe certificate firn-broker-classic-tls-lake-ca"),
    ],
)
async def test_brokers_stay_as_they_are_until_the_new_source_has_a_ca(new: str, hint: str) -> None:
    old = SIGNER if new == OWN else OWN
    stage = await begun("classic", old)
    before, authority = children.template_hash(stage.live), stage.authorities[stage.secret(new)]
    stage.authorities[stage.secret(new)] = ""
    stage.configured(new, old, "Issue")
    await stage.run()
    assert hint in stage.degraded
    assert children.template_hash(stage.live) == before
    stage.authorities[stage.secret(new)] = authority
    stage.mount(stage.world.config)
    await stage.run()
    assert len(stage.trusted().pop()) == 2


async def test_the_new_certificate_waits_for_each_user_and_driver() -> None:
    stage = await begun("classic", SIGNER)
    rotation = {"every": "30d", "overlap": "1d"}
    stage.world.cluster.create(gen.user(profile="classic", authentication={"rotation": rotation}))
    await stage.run()
    stage.configured(OWN, SIGNER, "Issue")
    stage.world.access.problem = {"put_credential": UnavailableError("the brokers do not answer")}
    await stage.run(age=AGE)
    assert stage.presented() == {stage.secret(SIGNER)}
    hint = "waits, because the Secret of TopicUser demo/checkout does not have both CAs yet; wait for the end of the overlap"
    assert hint in stage.degraded
    stage.world.access.problem = {}
    stage.world.start()
    await stage.run()
    assert (stage.presented(), stage.degraded) == ({OWN}, "")

    stage.configured(SIGNER, OWN)
    await stage.run()
    driver = stage.world.cluster.objects["apps/v1", "StatefulSet", "firn-system", "firn-ingest-default"]
    volumes = driver["spec"]["template"]["spec"]["volumes"]
    (volume,) = [each for each in volumes if each["name"].startswith("access-")]
    assert [source["secret"]["items"][0]["path"] for source in volume["projected"]["sources"][:2]] == [
        "ca.crt", "previous.crt",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
async def test_brokers_and_drivers_trust_each_other_after_any_sequence(seed: int) -> None:
    """Configurations change in any order, operators end between any two calls, and Secrets appear late."""
    chance = random.Random(seed)
    profile = chance.choice(["classic", "waves"])
    old = chance.choice([*SOURCE])
    stage = await begun(profile, old)
    for _ in range(12):
        new, previous = chance.sample([*SOURCE], 2)
        match chance.choice(("change", "change", "finish", "age", "kill", "lost")):
            case "change":
                stage.configured(new, previous, chance.choice(("Trust", "Issue")))
            case "finish":
                stage.configured(new)
            case "age":
                stage.world.clock.advance(AGE)
            case "kill":
                faults = stage.world.faults
                faults.kill_at = faults.calls + chance.randint(1, 6)
                faults.after_effect = chance.random() < 0.5
            case "lost":
                stage.world.authorities.sources[profile][0] = ""
        for _ in range(chance.randint(1, 12)):
            try:
                await stage.step(chance.choice((5.0, 60.0)))
            except Killed:
                stage.world.faults.kill_at = None
                stage.world.start()
    stage.world.faults.kill_at = None
    presented = stage.sources.newest.presents
    present = next(each for each in SOURCE if stage.secret(each) == presented)
    stage.configured(present)
    for other in [each for each in SOURCE if each != present]:
        if {held.presents for held in stage.sources.alive} <= {presented}:
            break
        stage.configured(present, other, "Issue")
        await stage.run()
    stage.configured(present)
    await stage.run(age=AGE)
    assert (stage.sources, stage.degraded) == (Sources.of(presented), "")


# What is rendered


def fleet(profile: str, held: Held | None = None) -> Any:
    managed = kinds.managed_fleet(config(profile, SIGNER, OWN), profile, OWNER, None)
    if held is None:
        return managed
    live = {
        "metadata": {"annotations": {SOURCES: Sources((held,)).written(), "firn.dev/access-stage": "3"}},
        "spec": {},
    }
    state = gen.stateful_set(names.fleet(profile), manifest=live)
    return kinds.managed_fleet(config(profile, SIGNER, OWN), profile, OWNER, state)


def held(profile: str, authorities: list[str]) -> Held:
    configured = config(profile, SIGNER, OWN).closed_profiles[profile].certificate
    return certificate.wanted(fleet(profile), configured, authorities)


def test_brokers_of_kafka_trust_the_bundle_and_present_one_certificate() -> None:
    plain = fleet("classic")
    assert isinstance(plain, KafkaFleet)
    assert config_map.properties(plain)["ssl.truststore.location"] == "/etc/firn/tls/ca.crt"
    changing = fleet("classic", held("classic", ["signer", "own"]))
    bundle = certificate.bundle(changing, ["signer", "own"])
    assert bundle is not None
    name = bundle["metadata"]["name"]
    assert bundle["data"] == {"ca.crt": "own\nsigner\n"}
    assert certificate.bundle(changing, ["signer", "another"]) is None, "the brokers' ConfigMap keeps its content"
    assert config_map.properties(changing)["ssl.truststore.location"] == names.trust_file("configmap", name, "ca.crt")
    of_clients = [
        config_map.properties(each)["listener.name.certificate.ssl.truststore.location"] for each in (plain, changing)
    ]
    assert of_clients == ["/etc/firn/keystore/clients.pem"] * 2, "another source does not change the CA of clients"
    spec = stateful_set.build(changing, 0)["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == "own"
    assert volumes["trust-0"]["configMap"]["name"] == name
    job = metadata_version.build(changing, "4.2")["spec"]["template"]["spec"]
    assert names.trust_file("configmap", name, "ca.crt") in str(job["containers"][0]["env"])
    assert name in str(job["volumes"])
    swapped = config("classic", OWN, SIGNER).closed_profiles["classic"].certificate
    assert certificate.wanted(plain, swapped, ["own", "signer"]).bundle == changing.sources.newest.bundle


def test_diskless_brokers_need_no_ca_of_the_sources() -> None:
    changing = fleet("waves", held("waves", ["signer", "own"]))
    assert isinstance(changing, DisklessFleet)
    tls = diskless_config_map.settings(changing)["listeners"]["secure"]["tls"]
    assert (tls["certFile"], tls["clientCaFile"]) == (names.secret_file("own", "tls.crt"), OF_CLIENTS)
    assert certificate.bundle(changing, ["signer", "own"]) is None
    assert [authority.path for authority in changing.authorities] == [OF_CLIENTS]


async def test_cert_manager_and_the_signer_keep_the_certificates_of_both_sources() -> None:
    both = config("classic", ISSUER, SIGNER)
    assert list(process.subjects(both)) == ["classic"]
    world = World(both)
    world.certificates.states[ISSUER.replace("PROFILE", "classic")] = CertificateState(ready=True, ends=NOW)
    await world.settle()
    assert list(world.certificates.applied) == [ISSUER.replace("PROFILE", "classic")]
    assert world.operator.board.certificate_ends == {}, "the metric is about the certificate that brokers have"
    assert list(process.subjects(config("classic", SIGNER, ISSUER))) == ["classic"]
    back = World(config("classic", SIGNER, ISSUER))
    await back.settle()
    assert list(back.certificates.applied) == [ISSUER.replace("PROFILE", "classic")]


def test_sources_that_share_a_secret_are_refused() -> None:
    for source in SOURCE:
        with pytest.raises(ValidationError, match="previous has the same Secret as the present source"):
            config("classic", source, source)
    kinds_of_issuers = [{"certManager": {"name": "one", "kind": kind}} for kind in ("Issuer", "ClusterIssuer")]
    given = {**kinds_of_issuers[0], "previous": kinds_of_issuers[1]}
    with pytest.raises(ValidationError, match="both issuers have the same name; create an issuer with another name"):
        gen.config(profiles={"classic": {"access": {"certificate": given}}})
    issuers = [{"certManager": {"name": name}} for name in ("one", "two")]
    access = {"certificate": {**issuers[0], "previous": issuers[1], "duration": "24h", "renewBefore": "1h"}}
    configured = gen.config(profiles={"classic": {"access": access}}).closed_profiles["classic"].certificate
    assert configured.trusted("classic") == ["firn-broker-classic-tls-one", "firn-broker-classic-tls-two"]
    assert [each.duration for each in configured.sources] == ["24h", "24h"]


def test_terms_may_be_set_while_one_of_both_sources_is_issued() -> None:
    terms = {"duration": "24h", "renewBefore": "1h"}
    for given in ({"secret": "own", "previous": {"selfSigned": {}}}, {"selfSigned": {}, "previous": {"secret": "own"}}):
        gen.config(profiles={"classic": {"access": {"certificate": {**given, **terms}}}})
    given = {"secret": "own", "previous": {"secret": "other"}, **terms}
    with pytest.raises(ValidationError, match="remove duration, renewBefore"):
        gen.config(profiles={"classic": {"access": {"certificate": given}}})
