"""Certificates, kubeconfigs and configuration files of the node's programs.

Sources: the reference pages of the components. A comment explains each setting that only this kind of machine needs.
"""

from __future__ import annotations

import json

from hack.localcluster.layout import (
    API_SERVICE_ADDRESS,
    NODE,
    NODE_ADDRESS,
    PAUSE_IMAGE,
    POD_RANGE,
    POLICY_SOCKET,
    Layout,
)
from hack.localcluster.node.certificates import Authority

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""Path inside the node, which has its own /run."""

_INSIDE_API = "https://127.0.0.1:6443"


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
        "policy-agent": ("firn:policy-agent", ""),
    }
    for name, (user, group) in users.items():
        authority.kubeconfig(layout.settings / f"{name}.kubeconfig", _INSIDE_API, *authority.client(name, user, group))
    authority.kubeconfig(
        layout.kubeconfig, f"https://127.0.0.1:{api_port}", *authority.client("admin", "admin", "system:masters")
    )


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
bin_dir = "{layout.plugins}"
conf_dir = "{layout.settings / "cni"}"
"""


def _pod_network() -> dict[str, object]:
    # ptp, not bridge: every packet between two pods is routed, so that Service addresses are translated back in the answers.
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
            # The last one: its pods start after the policy agent has applied their rules.
            {"type": "policycni", "socket": POLICY_SOCKET},
        ],
    }


def _corefile(layout: Layout) -> str:
    # No cache: changes of Services and pods show at once. Nothing outside the cluster can be reached, so no other name exists.
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
        # Other programs use the machine's disk too: a full disk must neither evict pods nor remove loaded images.
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
        # The kernel's connection table belongs to the machine. Its size cannot be set inside a namespace.
        "conntrack": {"maxPerCore": 0},
    }
