"""After all other tests of the release: no log, Event, object or argument list contains a credential."""

import secrets

from hack.quickstart import SYSTEM, apply, kubectl
from tests.e2e.credentials import COLLECTOR, places_with
from tests.e2e.topics import await_ready, topic_manifest


def test_no_credential_is_in_a_log_an_event_an_object_or_an_argument_list(namespace: str) -> None:
    # The name of a topic, and two words that are there, show that the search looks at each kind of place.
    canary = f"canary-{secrets.token_hex(6)}"
    apply(topic_manifest(canary, namespace))
    await_ready(canary, namespace)
    places = {place.rpartition("/")[0] for place in places_with([canary])}
    assert places >= {f"icebergtopics {namespace}", f"configmaps {SYSTEM}", f"events {namespace}"}
    assert f"log {SYSTEM}" in {place.rpartition("/")[0] for place in places_with(["timestamp"])}
    assert any(place.startswith("process ") for place in places_with(["firn_operator"]))

    COLLECTOR.look()
    password = kubectl("-n", SYSTEM, "get", "secret", "firn-postgres", "-o", "jsonpath={.data.password}")
    assert password, "the quick start has a password"
    assert len(COLLECTOR.found) >= 3, "the release has credentials of its stores"
    assert places_with(COLLECTOR.found) == set()
