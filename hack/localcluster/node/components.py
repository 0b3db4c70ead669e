"""Command lines of the node's programs.

Sources: the reference pages of the components. A comment explains each setting that only this kind of machine needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hack.localcluster.layout import NODE, NODE_ADDRESS, NODE_PORTS, POLICY_SOCKET, SERVICE_RANGE, Layout


@dataclass(frozen=True)
class Component:
    """A long-running program of the node and its command line."""

    name: str
    arguments: list[str]
    descriptors: list[int] = field(default_factory=list)
    """Open descriptors that the program inherits."""


def components(layout: Layout, kube: Path, coredns: Path, sockets: dict[int, int]) -> list[Component]:
    """Return every component, in the order in which they start.

    `sockets` maps a port in this network namespace to the descriptor of the outer listener.
    """
    forwards = [
        f"{descriptor}={'127.0.0.1' if port == 6443 else NODE_ADDRESS}:{port}" for port, descriptor in sockets.items()
    ]
    return [
        _etcd(layout, kube),
        Component("containerd", ["containerd", "--config", str(layout.settings / "containerd.toml")]),
        _api_server(layout, kube),
        _controller_manager(layout, kube),
        Component(
            "kube-scheduler",
            [
                *(str(kube), "kube-scheduler", f"--kubeconfig={layout.settings / 'kube-scheduler.kubeconfig'}"),
                *("--leader-elect=false", "--bind-address=127.0.0.1"),
            ],
        ),
        Component(
            "kubelet",
            [
                *(str(kube), "kubelet", f"--config={layout.settings / 'kubelet.yaml'}"),
                f"--kubeconfig={layout.settings / 'kubelet.kubeconfig'}",
                *(f"--hostname-override={NODE}", f"--node-ip={NODE_ADDRESS}"),
            ],
        ),
        Component("kube-proxy", [str(kube), "kube-proxy", f"--config={layout.settings / 'kube-proxy.yaml'}"]),
        Component("coredns", [str(coredns), "-conf", str(layout.settings / "Corefile")]),
        Component(
            "local-provisioner",
            [
                *(str(kube), "local-provisioner", f"--kubeconfig={layout.settings / 'local-provisioner.kubeconfig'}"),
                *(f"--directory={layout.volumes}", f"--node={NODE}"),
            ],
        ),
        Component(
            "policy-agent",
            [
                *(str(kube), "policy-agent", f"--kubeconfig={layout.settings / 'policy-agent.kubeconfig'}"),
                f"--socket={POLICY_SOCKET}",
            ],
        ),
        Component("forward", [str(kube), "forward", *forwards], list(sockets.values())),
    ]


_ETCD = "http://127.0.0.1:2379"


def _etcd(layout: Layout, kube: Path) -> Component:
    return Component(
        "etcd",
        [
            *(str(kube), "etcd", "--name=node", f"--data-dir={layout.node / 'etcd'}"),
            *(f"--listen-client-urls={_ETCD}", f"--advertise-client-urls={_ETCD}"),
            *("--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380"),
            "--initial-cluster=node=http://127.0.0.1:2380",
            *("--unsafe-no-fsync", "--logger=zap", "--log-level=warn"),
        ],
    )


def _api_server(layout: Layout, kube: Path) -> Component:
    def key(name: str) -> str:
        return str(layout.keys / name)

    return Component(
        "kube-apiserver",
        [
            *(str(kube), "kube-apiserver", f"--etcd-servers={_ETCD}"),
            *(f"--advertise-address={NODE_ADDRESS}", "--secure-port=6443"),
            *(f"--tls-cert-file={key('apiserver.crt')}", f"--tls-private-key-file={key('apiserver.key')}"),
            *(f"--client-ca-file={key('ca.crt')}", "--authorization-mode=Node,RBAC"),
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={key('apiserver-kubelet.crt')}",
            f"--kubelet-client-key={key('apiserver-kubelet.key')}",
            *(f"--kubelet-certificate-authority={key('ca.crt')}", "--kubelet-preferred-address-types=InternalIP"),
            *("--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--api-audiences=kubernetes"),
            f"--service-account-key-file={key('service-account.crt')}",
            f"--service-account-signing-key-file={key('service-account.key')}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--service-node-port-range={NODE_PORTS.start}-{NODE_PORTS.stop - 1}",
            "--allow-privileged=true",
        ],
    )


def _controller_manager(layout: Layout, kube: Path) -> Component:
    kubeconfig = layout.settings / "kube-controller-manager.kubeconfig"
    return Component(
        "kube-controller-manager",
        [
            *(str(kube), "kube-controller-manager", f"--kubeconfig={kubeconfig}"),
            "--use-service-account-credentials",
            f"--service-account-private-key-file={layout.keys / 'service-account.key'}",
            f"--root-ca-file={layout.keys / 'ca.crt'}",
            f"--cluster-signing-cert-file={layout.keys / 'ca.crt'}",
            f"--cluster-signing-key-file={layout.keys / 'ca.key'}",
            *("--leader-elect=false", "--bind-address=127.0.0.1"),
        ],
    )
