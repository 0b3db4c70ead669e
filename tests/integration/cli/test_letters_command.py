"""``firn dlq list`` and ``show`` name the right or the place that they need."""

from pathlib import Path

from tests import gen
from tests.integration.cli.conftest import Cluster


def test_a_missing_right_to_the_topic_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create(cluster.topic("orders"))
    config = tmp_path / "config.yaml"
    config.write_text(gen.config().model_dump_json(by_alias=True, exclude_defaults=True))
    topic = f"{cluster.namespace}/orders"
    done = cluster.person("nobody").run("dlq", "list", topic, "--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"you may not get icebergtopics.firn.dev in namespace {cluster.namespace}; ask an administrator" in done.stderr
    )
    done = cluster.administrator.run("dlq", "show", topic, "--config", str(config))
    assert f"IcebergTopic {topic} has no table yet" in done.stderr


def test_without_the_configuration_the_command_names_the_pod(cluster: Cluster) -> None:
    done = cluster.administrator.run("dlq", "list", f"{cluster.namespace}/orders")
    assert done.returncode == 2
    assert "commands that need the operator's configuration run in its pod: kubectl -n firn-system exec" in done.stderr
