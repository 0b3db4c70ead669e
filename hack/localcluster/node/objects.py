"""Objects that the node's own programs need in the cluster."""

from __future__ import annotations


def manifests() -> list[dict[str, object]]:
    """Return the objects that the node's own programs need: their rights, and the default StorageClass."""

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
        *role(
            "policy-agent",
            [
                {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": read},
                {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
            ],
        ),
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "firn.dev/local",
            "reclaimPolicy": "Delete",
            # A `local` volume belongs to one node: it is created on the node of its first pod.
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    ]
