"""Settings from a file and from the environment, and the messages for invalid ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from firn.model.errors import ExitCode, InvalidSpecError
from firn_broker import __main__, settings
from firn_broker.__main__ import main
from firn_broker.settings import BrokerSettings, PostgresSettings

SERVICE_LINKS = {
    "FIRN_BROKER_DISKLESS_SERVICE_HOST": "10.0.0.7",
    "FIRN_BROKER_DISKLESS_SERVICE_PORT": "9092",
    "FIRN_BROKER_DISKLESS_SERVICE_PORT_KAFKA": "9092",
    "FIRN_BROKER_DISKLESS_PORT": "tcp://10.0.0.7:9092",
    "FIRN_BROKER_DISKLESS_PORT_9092_TCP": "tcp://10.0.0.7:9092",
    "FIRN_BROKER_DISKLESS_PORT_9092_TCP_PROTO": "tcp",
    "FIRN_BROKER_DISKLESS_PORT_9092_TCP_PORT": "9092",
    "FIRN_BROKER_DISKLESS_PORT_9092_TCP_ADDR": "10.0.0.7",
    "FIRN_BROKER_SERVICE_HOST": "10.0.0.8",
    "FIRN_BROKER_PORT": "tcp://10.0.0.8:9092",
}


def document(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "broker.yaml"
    given = {
        "coordinator": {"type": "sqlite", "path": str(tmp_path / "coordinator.db")},
        "objects": {"type": "directory", "path": str(tmp_path / "objects")},
    }
    path.write_text(json.dumps(given | more))
    return path


def load(tmp_path: Path, environment: dict[str, str], **more: Any) -> BrokerSettings:
    return settings.load(document(tmp_path, **more), environment)


def test_the_environment_sets_any_key(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        {"FIRN_BROKER_WRITER__FLUSH_SECONDS": "0.5", "FIRN_BROKER_ZONE": "a", "FIRN_BROKER_EXTERNAL__BIND": "h:1"},
        external=None,
    )
    assert (loaded.writer.flush_seconds, loaded.zone) == (0.5, "a")
    assert loaded.external is not None
    assert loaded.external.bind == "h:1"


def test_service_variables_of_kubernetes_are_ignored(tmp_path: Path) -> None:
    assert load(tmp_path, SERVICE_LINKS) == load(tmp_path, {})


@pytest.mark.parametrize("name", BrokerSettings.model_fields)
def test_no_setting_has_the_name_of_a_service_variable(tmp_path: Path, name: str) -> None:
    """The value is wrong for every setting, so the error shows that the broker does not ignore the variable."""
    with pytest.raises(InvalidSpecError, match=f"configuration of the broker: {to_camel(name)}"):
        load(tmp_path, {f"FIRN_BROKER_{name.upper()}": "[[]]"})


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, {"FIRN_BROKER_NODE_ID": "", "FIRN_BROKER_ZONE": "", "FIRN_BROKER_EXTERNAL__ADVERTISED": ""}, zone="a"
    )
    assert (loaded.node_id, loaded.zone, loaded.external) == (None, "a", None)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FIRN_BROKER_NO_SUCH_KEY", "1", "noSuchKey"),
        ("FIRN_BROKER_ZONE__NAME", "a", "FIRN_BROKER_ZONE__NAME: zone has no keys"),
        ("FIRN_BROKER_ZONE", "a: b: c", "FIRN_BROKER_ZONE is not YAML"),
    ],
)
def test_an_error_names_a_wrong_variable(tmp_path: Path, variable: str, value: str, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        load(tmp_path, {variable: value}, zone="x")


@pytest.mark.parametrize("user", [{}, {"user": "a", "userFile": "/b"}])
def test_the_database_user_may_be_set_only_once(tmp_path: Path, user: dict[str, str]) -> None:
    with pytest.raises(InvalidSpecError, match="set exactly one of user and userFile"):
        load(tmp_path, {}, coordinator={"type": "postgres", "uri": "postgresql://h/d", **user})


@pytest.mark.parametrize("key", ["coordinator.userFile", "coordinator.passwordFile", "objects.secretConfig.aws_token"])
@pytest.mark.parametrize("command", ["serve", "fsck"])
def test_an_error_names_a_missing_secret_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str, command: str
) -> None:
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.write_text("value")
    files = {
        file_key: str(gone if file_key == key else there)
        for file_key in ("coordinator.userFile", "coordinator.passwordFile", "objects.secretConfig.aws_token")
    }
    path = document(
        tmp_path,
        coordinator={
            "type": "postgres", "uri": "postgresql://127.0.0.1:1/d", "userFile": files["coordinator.userFile"],
            "passwordFile": files["coordinator.passwordFile"],
        },
        objects={"type": "bucket", "url": "s3://b/p", "secretConfig": {"aws_token": files["objects.secretConfig.aws_token"]}},
    )  # fmt: skip
    with monkeypatch.context() as patched:
        # Logging is set up once for a process, which is that of the tests.
        patched.setattr(__main__, "log_as_json", lambda: None)
        assert main(["--config", str(path), command]) == ExitCode.CONFIGURATION
    stderr = capsys.readouterr().err
    assert f"{key}: cannot read {gone}" in stderr
    assert "Traceback" not in stderr


def test_a_secret_is_read_without_its_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("firn\n")
    assert settings.secret("coordinator.userFile", str(tmp_path / "user")) == "firn"
    assert PostgresSettings(uri="postgresql://h/d", user_file="/u").user == ""


INTERNAL = {"bind": "0.0.0.0:9095", "tokenFile": "/secrets/token"}


def test_an_internal_listener_needs_a_bucket(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match="internal: other processes cannot read objects in a directory"):
        load(tmp_path, {}, internal=INTERNAL)
    loaded = load(tmp_path, {}, internal=INTERNAL, objects={"type": "bucket", "url": "s3://b/p"})
    assert loaded.internal is not None
    assert loaded.internal.token_file == "/secrets/token"


TLS = {"certFile": "/secrets/tls.crt", "keyFile": "/secrets/tls.key"}
OAUTH = {"issuer": "i", "audience": "a", "jwksFile": "keys"}


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        ({"tokenFile": "/secrets/token"}, {}, r"internal\.bind: Field required"),
        ({"bind": "0.0.0.0:9095"}, {}, "internal: set tokenFile, or for tokens of an issuer both tls and oauth"),
        ({"bind": "0.0.0.0:9095", "tls": TLS}, {}, "internal: set tokenFile"),
        ({"bind": "0.0.0.0:9095"}, {"oauth": OAUTH}, "internal: set tokenFile"),
    ],
)
def test_an_internal_listener_has_an_address_and_a_kind_of_token(
    tmp_path: Path, given: dict[str, object], more: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        load(tmp_path, {}, internal=given, objects={"type": "bucket", "url": "s3://b/p"}, **more)


def test_the_address_of_an_internal_listener_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Logging is set up once for a process, which is that of the tests.
    monkeypatch.setattr(__main__, "log_as_json", lambda: None)
    path = document(tmp_path, internal={**INTERNAL, "bind": "nowhere"}, objects={"type": "bucket", "url": "s3://b/p"})
    assert main(["--config", str(path)]) == ExitCode.CONFIGURATION
    assert "'nowhere' is not HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "uploads"),
    [
        pytest.param({}, 1, id="one"),
        pytest.param({"FIRN_BROKER_WRITER__EARLY_UPLOADS": "3"}, 3, id="as the environment says"),
    ],
)
def test_an_embedded_broker_has_few_early_uploads(tmp_path: Path, environment: dict[str, str], uploads: int) -> None:
    assert settings.embedded(tmp_path, environment).writer.early_uploads == uploads


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"authorization": {"superUsers": ["User:admin"]}}, "only with type: Acl"),
        ({"authorization": {"default": "Deny"}}, "only with type: Acl"),
        ({"listener": {"authentication": ["Plain"]}}, "Plain sends passwords in clear text"),
        ({"listener": {"authentication": ["OAuth"]}}, "OAuth sends tokens in clear text"),
        ({"listener": {"authentication": ["Certificate"]}}, "set both tls.clientCaFile and Certificate"),
        ({"listener": {"tls": {"certFile": "c", "keyFile": "k", "clientCaFile": "a"}}}, "set both tls.clientCaFile"),
        (
            {"listener": {"authentication": ["OAuth"], "tls": {"certFile": "c", "keyFile": "k"}}},
            "set oauth to the issuer",
        ),
        ({"listeners": {"external": {}}}, "is not possible as a name"),
    ],
)
def test_settings_that_only_look_safe_are_refused(changes: dict[str, Any], problem: str) -> None:
    document = {"coordinator": {"type": "sqlite", "path": "p"}, "objects": {"type": "directory", "path": "p"}}
    with pytest.raises(ValidationError, match=problem):
        BrokerSettings.model_validate({**document, **changes})
