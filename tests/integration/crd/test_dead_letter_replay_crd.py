"""The API server checks DeadLetterReplays: their defaults, their bounds, and that a spec does not change."""

from typing import Any

import pytest
import yaml

from firn.api.v1alpha1 import DeadLetterReplay
from hack.support.places import REPOSITORY
from tests.apiserver import ApiServer, Manifest, Refused

PLACE = "/apis/firn.dev/v1alpha1/namespaces/demo/deadletterreplays"
SAMPLES = sorted((REPOSITORY / "crds/samples/replays").glob("*.yaml"))


def replay(name: str = "mend", **spec: Any) -> Manifest:
    return {
        "apiVersion": "firn.dev/v1alpha1",
        "kind": "DeadLetterReplay",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {"topicRef": {"name": "flights"}, **spec},
    }


def create(api: ApiServer, manifest: Manifest, *, dry: bool = True) -> Manifest:
    return api.call("POST", f"{PLACE}?fieldValidation=Strict" + ("&dryRun=All" if dry else ""), manifest)


def test_the_shortest_replay_is_a_dry_run(api: ApiServer) -> None:
    stored = create(api, replay())
    assert stored["spec"]["mode"] == "DryRun"
    assert DeadLetterReplay.model_validate(stored).spec == DeadLetterReplay.model_validate(replay()).spec


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_api_server_accepts_the_samples(api: ApiServer, path: Any) -> None:
    manifest = yaml.safe_load(path.read_text())
    assert DeadLetterReplay.model_validate(create(api, manifest)).spec.mode == "DryRun", "a sample changes no table"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"mode": "Yolo"}, "Unsupported value"),
        ({"where": {"codes": ["no code!"]}}, "codes"),
        ({"where": {"since": "yesterday"}}, "date-time"),
        ({"limit": {"records": 0}}, "records"),
        ({"run": {"deadline": "2d"}}, "between 1m and 1d"),
        ({"topicRef": {"name": ""}}, "name"),
        ({"schemaOf": "Current"}, "unknown field"),
    ],
)
def test_the_api_server_rejects_an_invalid_spec(api: ApiServer, spec: Manifest, message: str) -> None:
    with pytest.raises(Refused, match=message):
        create(api, replay(**spec))


def test_the_spec_of_a_replay_cannot_change(api: ApiServer) -> None:
    create(api, replay("fixed"), dry=False)
    change = {"spec": {"mode": "Enforce"}}
    with pytest.raises(Refused, match="create another DeadLetterReplay"):
        api.call("PATCH", f"{PLACE}/fixed", change, "application/merge-patch+json")
    api.call("DELETE", f"{PLACE}/fixed")
