"""After all other tests of the release: no log, Event, object or argument list contains a credential."""

import secrets
from collections.abc import Iterator

import pytest

from hack import quickstart
from hack.quickstart import SYSTEM, apply, await_until, kubectl
from tests.e2e.credentials import COLLECTOR, SHAPES, Collector
from tests.e2e.topics import await_ready, topic_manifest


def speak(text: str, namespace: str) -> None:
    """Run the pod ``speaker``, and wait until the search has found its log."""
    pod = quickstart.client_pod("speaker", namespace)
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", f"echo {text}; exec sleep 600"]
    quickstart.apply(pod)
    await_until("the log is found", lambda: f"log {namespace}/speaker" in COLLECTOR.places_with(text), timeout=120)


@pytest.fixture
def search(release: None) -> Iterator[Collector]:
    """Return what the other tests have left, and end the collection: later tests of the process measure memory."""
    yield COLLECTOR
    COLLECTOR.stop()


def test_no_credential_is_in_a_log_an_event_an_object_or_an_argument_list(namespace: str, search: Collector) -> None:
    # The name of a topic, and two words that are there, show that the search looks at each kind of place.
    canary = f"canary-{secrets.token_hex(6)}"
    apply(topic_manifest(canary, namespace))
    await_ready(canary, namespace)
    search.look()
    places = {place.rpartition("/")[0] for place in search.places_with(canary)}
    assert places >= {f"icebergtopics {namespace}", f"configmaps {SYSTEM}", f"events {namespace}"}
    assert f"log {SYSTEM}" in {place.rpartition("/")[0] for place in search.places_with("timestamp")}
    assert any(place.startswith("process ") for place in search.places_with("firn_operator"))
    speak(canary, namespace)
    kubectl("-n", namespace, "delete", "pod", "speaker", "--grace-period=0", "--force")
    assert f"log {namespace}/speaker" in search.places_with(canary), "the search knows the logs of deleted pods"

    password = kubectl("-n", SYSTEM, "get", "secret", "firn-postgres", "-o", "jsonpath={.data.password}")
    assert password, "the quick start has a password"
    assert len(search.found) >= 3, "the release has credentials of its stores"
    assert search.places_with(*search.found) == set()
    token = kubectl("-n", SYSTEM, "create", "token", "firn-operator")
    for secret in (token, "-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----"):
        assert SHAPES.search(secret), "the search knows the shapes of tokens and keys"
    assert search.places_with_shapes() == set()
