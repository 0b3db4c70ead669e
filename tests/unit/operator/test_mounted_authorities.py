"""CAs of brokers, while the source of their certificate changes."""

from pathlib import Path

import pytest

from firn.kafka_clients import connection_settings
from firn.model.errors import NotReadyError
from firn.model.jobs import KafkaConnection
from firn_operator.adapters import secret_files
from firn_operator.adapters.authorities import MountedAuthorities


async def test_clients_trust_the_cas_that_exist(tmp_path: Path) -> None:
    present, previous = tmp_path / "ca.crt", tmp_path / "previous.crt"
    connection = KafkaConnection(
        bootstrap_servers="kafka:9096", protocol="SSL", ca_path=str(present), previous_ca_path=str(previous)
    )
    port = MountedAuthorities({"classic": connection})

    def trusted() -> str:
        settings = connection_settings(connection, lambda path: secret_files.read(path, "test"))
        return str(settings["ssl.ca.pem"])

    with pytest.raises(NotReadyError, match=r"ca\.crt"):
        trusted()
    previous.write_text("old\n")
    before = secret_files.signature(connection.secret_files)
    assert (trusted(), await port.certificates("classic")) == ("old", "old\n")
    assert await port.of_sources("classic") == ["", "old"]
    present.write_text("new\n")
    assert (trusted(), await port.certificates("classic")) == ("new\nold", "new\nold\n")
    assert await port.of_sources("classic") == ["new", "old"]
    assert secret_files.signature(connection.secret_files) != before, "clients connect again"
    single = connection.model_copy(update={"previous_ca_path": None})
    assert await MountedAuthorities({"classic": single}).certificates("classic") == "new\n"
