"""Command lines and configuration files of everything that runs on the node.

Sources: the components' own reference pages; what this kind of machine asks for beyond them is said where it is set.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from .certificates import Authority
from .layout import API_SERVICE_ADDRESS, NODE, NODE_ADDRESS, NODE_PORTS, PAUSE_IMAGE, POD_RANGE, SERVICE_RANGE, Layout

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""Inside the node, whose /run is its own."""

_INSIDE_API = "https://127.0.0.1:6443"


@dataclass(frozen=True)
class Component:
    """One long-running program of the node and its command line."""

    name: str
    arguments: list[str]
    descriptors: list[int] = field(default_factory=list)
    """Open descriptors that it inherits."""


def write_settings(layout: Layout, api_port: int) -> None:
    """Write certificates, kubeconfigs and configuration files. Repeatable."""
    for directory in (
        layout.settings,
        layout.logs / "components",
        layout.volumes,
        layout.images,
        layout.node / "lib",
        layout.node / "etcd",
    ):
        directory.mkdir(parents=True, exist_ok=True)
    _write_keys(layout, api_port)
    files: dict[str, str | dict[str, object]] = {
        "containerd.toml": _containerd(layout),
        "cni/10-pods.conflist": _pod_network(),
        "Corefile": _corefile(layout),
        "resolv.conf": "",
        "kubelet.yaml": _kubelet(layout),
        "kube-proxy.yaml": _kube_proxy(layout),
    }
    for name, content in files.items():
        path = layout.settings / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))


def _write_keys(layout: Layout, api_port: int) -> None:
    authority = Authority(layout.keys)
    services = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ]
    authority.server("apiserver", "kube-apiserver", services, ["127.0.0.1", NODE_ADDRESS, API_SERVICE_ADDRESS])
    authority.server("kubelet-server", NODE, [NODE], [NODE_ADDRESS])
    authority.client("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters")
    authority.client("service-account", "service-account")
    users = {
        "kube-controller-manager": ("system:kube-controller-manager", ""),
        "kube-scheduler": ("system:kube-scheduler", ""),
        "kube-proxy": ("system:kube-proxy", ""),
        "kubelet": (f"system:node:{NODE}", "system:nodes"),
        "coredns": ("firn:coredns", ""),
        "local-provisioner": ("firn:local-provisioner", ""),
    }
    for name, (user, group) in users.items():
        authority.kubeconfig(layout.settings / f"{name}.kubeconfig", _INSIDE_API, *authority.client(name, user, group))
    authority.kubeconfig(
        layout.kubeconfig, f"https://127.0.0.1:{api_port}", *authority.client("admin", "admin", "system:masters")
    )


def components(layout: Layout, kube: Path, coredns: Path, sockets: dict[int, int]) -> list[Component]:
    """Every component, in the order in which they start. `sockets`: port in this network namespace -> descriptor of the outer listener."""

    def config(name: str) -> str:
        return str(layout.settings / name)

    def key(name: str) -> str:
        return str(layout.keys / name)

    etcd = "http://127.0.0.1:2379"
    forwards = [
        f"{descriptor}={'127.0.0.1' if port == 6443 else NODE_ADDRESS}:{port}" for port, descriptor in sockets.items()
    ]
    return [
        Component(
            "etcd",
            [
                *(str(kube), "etcd", "--name=node", f"--data-dir={layout.node / 'etcd'}"),
                *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
                *("--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380"),
                *(
                    "--initial-cluster=node=http://127.0.0.1:2380",
                    "--unsafe-no-fsync",
                    "--logger=zap",
                    "--log-level=warn",
                ),
            ],
        ),
        Component("containerd", ["containerd", "--config", config("containerd.toml")]),
        Component(
            "kube-apiserver",
            [
                *(
                    str(kube),
                    "kube-apiserver",
                    f"--etcd-servers={etcd}",
                    f"--advertise-address={NODE_ADDRESS}",
                    "--secure-port=6443",
                ),
                *(f"--tls-cert-file={key('apiserver.crt')}", f"--tls-private-key-file={key('apiserver.key')}"),
                *(
                    f"--client-ca-file={key('ca.crt')}",
                    "--authorization-mode=Node,RBAC",
                    "--enable-admission-plugins=NodeRestriction",
                ),
                *(
                    f"--kubelet-client-certificate={key('apiserver-kubelet.crt')}",
                    f"--kubelet-client-key={key('apiserver-kubelet.key')}",
                ),
                *(f"--kubelet-certificate-authority={key('ca.crt')}", "--kubelet-preferred-address-types=InternalIP"),
                *(
                    "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                    "--api-audiences=kubernetes",
                ),
                *(
                    f"--service-account-key-file={key('service-account.crt')}",
                    f"--service-account-signing-key-file={key('service-account.key')}",
                ),
                *(
                    f"--service-cluster-ip-range={SERVICE_RANGE}",
                    f"--service-node-port-range={NODE_PORTS.start}-{NODE_PORTS.stop - 1}",
                ),
                "--allow-privileged=true",
            ],
        ),
        Component(
            "kube-controller-manager",
            [
                *(str(kube), "kube-controller-manager", f"--kubeconfig={config('kube-controller-manager.kubeconfig')}"),
                *(
                    "--use-service-account-credentials",
                    f"--service-account-private-key-file={key('service-account.key')}",
                ),
                *(
                    f"--root-ca-file={key('ca.crt')}",
                    f"--cluster-signing-cert-file={key('ca.crt')}",
                    f"--cluster-signing-key-file={key('ca.key')}",
                ),
                *("--leader-elect=false", "--bind-address=127.0.0.1"),
            ],
        ),
        Component(
            "kube-scheduler",
            [
                *(str(kube), "kube-scheduler", f"--kubeconfig={config('kube-scheduler.kubeconfig')}"),
                *("--leader-elect=false", "--bind-address=127.0.0.1"),
            ],
        ),
        Component(
            "kubelet",
            [
                *(
                    str(kube),
                    "kubelet",
                    f"--config={config('kubelet.yaml')}",
                    f"--kubeconfig={config('kubelet.kubeconfig')}",
                ),
                *(f"--hostname-override={NODE}", f"--node-ip={NODE_ADDRESS}"),
            ],
        ),
        Component("kube-proxy", [str(kube), "kube-proxy", f"--config={config('kube-proxy.yaml')}"]),
        Component("coredns", [str(coredns), "-conf", config("Corefile")]),
        Component(
            "local-provisioner",
            [
                *(str(kube), "local-provisioner", f"--kubeconfig={config('local-provisioner.kubeconfig')}"),
                *(f"--directory={layout.volumes}", f"--node={NODE}"),
            ],
        ),
        Component("forward", [str(kube), "forward", *forwards], list(sockets.values())),
    ]


def manifests() -> list[dict[str, object]]:
    """What the cluster needs as objects: rights of the node's own programs, and the default StorageClass."""

    def role(name: str, rules: list[dict[str, list[str]]]) -> list[dict[str, object]]:
        full = f"firn:{name}"
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": full}
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": full}
        return [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": full},
                "rules": rules,
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": full},
                "roleRef": reference,
                "subjects": [user],
            },
        ]

    read = ["get", "list", "watch"]
    return [
        *role(
            "coredns",
            [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": read},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            ],
        ),
        *role(
            "local-provisioner",
            [
                {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": [*read, "create", "update", "delete"]},
                {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": read},
                {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": read},
            ],
        ),
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "firn.dev/local",
            "reclaimPolicy": "Delete",
            # A `local` volume belongs to one node: it is made where the scheduler has put its first pod.
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    ]


def _containerd(layout: Layout) -> str:
    # restrict_oom_score_adj: a process tree without CAP_SYS_RESOURCE cannot lower oom_score_adj, and runc then fails with
    # "can't get final child's PID from pipe: EOF".
    return f"""\
version = 2
root = "{layout.images}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", \
"io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{layout.settings / "cni"}"
"""


def _pod_network() -> dict[str, object]:
    # ptp, not bridge: every packet between two pods is routed, so that Service addresses are translated back on the way home.
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_RANGE}]], "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _corefile(layout: Layout) -> str:
    # No cache: a Service or pod that has just come or gone is seen at once. Nothing outside the cluster can be reached, so nothing else exists.
    return f"""\
cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {{
    bind {NODE_ADDRESS}
    errors
    health 127.0.0.1:8053
    ready 127.0.0.1:8054
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {layout.settings / "coredns.kubeconfig"} firn
        pods verified
        ttl 1
    }}
}}
.:53 {{
    bind {NODE_ADDRESS}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def _kubelet(layout: Layout) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.keys / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.keys / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(layout.keys / "kubelet-server.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.control_group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(layout.settings / "resolv.conf"),
        "volumePluginDir": str(layout.node / "volume-plugins"),
        # The machine's disk is not the cluster's alone: its fill must neither evict pods nor remove the images that were loaded.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "maxPods": 250,
    }


def _kube_proxy(layout: Layout) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": NODE,
        "clientConnection": {"kubeconfig": str(layout.settings / "kube-proxy.kubeconfig")},
        "clusterCIDR": POD_RANGE,
        # The kernel's connection table belongs to the machine: its size is not set from inside a namespace.
        "conntrack": {"maxPerCore": 0},
    }
