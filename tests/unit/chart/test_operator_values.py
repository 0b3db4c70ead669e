"""The operator reads profiles, catalogs and groups from its ConfigMap as the values have them."""

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from firn.model import names
from firn.model.config import Config
from tests.chart import find_object, manifests, render

# Words that YAML would not read as a string, line ends, quotes, and text that looks like a template.
awkward = st.sampled_from(
    [
        "yes",
        "null",
        "~",
        "1e3",
        "0x1f",
        "1_000",
        "1:30",
        "0o17",
        "012",
        "=",
        "<<",
        "on",
        ".inf",
        "+1",
        "1.",
        "2026-01-01",
        " x ",
        "a: b",
        "- a",
        "#",
        "{{ .Values }}",
        "'",
        '"',
        "\\",
        "|",
        "%",
    ]
)
text = (
    st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"], include_characters="\n\t"), max_size=20) | awkward
)
name = st.from_regex(r"[a-z]([-a-z0-9]{0,6}[a-z0-9])?", fullmatch=True)
secret_key = st.fixed_dictionaries({"secret": name, "key": st.from_regex(r"[-._a-z0-9]{1,8}", fullmatch=True)})
strings = st.dictionaries(st.from_regex(r"[a-z][a-z.]{0,8}", fullmatch=True) | st.just("on"), text, max_size=3)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for mappings with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


scheduling = some(
    nodeSelector=strings,
    tolerations=st.lists(st.fixed_dictionaries({"key": text, "operator": st.just("Exists")}), max_size=2),
    priorityClassName=name,
)
sasl = st.fixed_dictionaries({"mechanism": st.just("PLAIN"), "username": text, "password": secret_key})
sasl |= st.fixed_dictionaries(
    {
        "mechanism": st.just("OAUTHBEARER"),
        "username": text,
        "password": secret_key,
        "tokens": st.fixed_dictionaries({"url": st.just("https://idp/token")}, optional={"ca": secret_key}),
    }
)
security = st.one_of(
    some(sasl=sasl),
    st.fixed_dictionaries({"tls": st.just(True)}, optional={"ca": secret_key, "sasl": sasl}),
    st.fixed_dictionaries({"tls": st.just(True), "certificate": secret_key, "certificateKey": secret_key}),
)
profile = some(
    namespaces=st.lists(name, max_size=2),
    defaultPartitions=st.integers(1, 10_000),
    bootstrapServers=text,
    security=security,
    config=strings,
    scheduling=scheduling,
)
profile |= st.fixed_dictionaries(
    {
        "kind": st.just("Diskless"),
        "image": st.just({"image": "broker:1"}),
        "coordinator": st.fixed_dictionaries(
            {"uri": st.just("postgresql://host/db"), "user": text.filter(bool)}, optional={"password": secret_key}
        ),
        "objectStore": st.fixed_dictionaries(
            {"url": st.just("s3://bucket")},
            optional={"properties": strings, "secretProperties": st.dictionaries(name, secret_key, max_size=2)},
        ),
    },
    optional={
        "namespaces": st.lists(name, max_size=2),
        "topicConfig": strings,
        "environment": strings,
        "config": st.dictionaries(st.just("reader"), st.dictionaries(name, text | st.integers(0, 2**40)), max_size=1),
    },
)
catalog = st.fixed_dictionaries(
    {"type": st.sampled_from(["sql", "rest"]), "uri": text.map("http://host/".__add__), "warehouse": text},
    optional={"properties": strings, "secretProperties": st.dictionaries(name, secret_key, max_size=2)},
)
registry = st.fixed_dictionaries({"url": st.just("https://registry")}, optional={"token": secret_key})
registry |= st.fixed_dictionaries(
    {"url": st.just("http://registry/v7"), "username": text.filter(bool), "password": secret_key}
)
group = some(
    cores=st.integers(1, 64),
    sparkConf=strings,
    environment=strings,
    executors=st.fixed_dictionaries({"instances": st.integers(1, 100)}, optional={"cores": st.integers(1, 64)}),
)


# No shrinking, because each example is a run of Helm.
@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    st.dictionaries(name.filter(lambda text: text != "classic"), profile, max_size=2),
    st.dictionaries(name.filter(lambda text: text != "lake"), catalog, max_size=2),
    st.dictionaries(name, registry, max_size=2),
    st.dictionaries(name, st.fixed_dictionaries({"value": secret_key}), max_size=2),
    st.dictionaries(name, group, max_size=2),
)
def test_values_reach_the_operator(
    profiles: dict[str, Any],
    catalogs: dict[str, Any],
    registries: dict[str, Any],
    salts: dict[str, Any],
    groups: dict[str, Any],
) -> None:
    groups = {"default": {}} | groups
    values = {"profiles": profiles, "catalogs": catalogs, "registries": registries, "salts": salts, "groups": groups}
    objects = manifests(render({"images": {"registry": "r"}, **values}))
    document = find_object(objects, "ConfigMap", names.CONFIG_OBJECT)["data"]["config.yaml"]
    config = Config.model_validate(yaml.safe_load(document))
    rendered = config.model_dump(by_alias=True, exclude_unset=True)
    assert {key: value for key, value in rendered["profiles"].items() if key != "classic"} == profiles
    assert {key: value for key, value in rendered["catalogs"].items() if key != "lake"} == catalogs
    assert rendered["registries"] == registries
    assert rendered.get("salts", {}) == salts
    assert rendered["groups"] == groups

    pod = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    own = [volume for volume in pod["volumes"] if not volume["name"].startswith("trust-")]
    mounted = [volume["secret"]["secretName"] for volume in own if "secret" in volume]
    assert mounted == config.secret_names()
