"""Ownership of a table: the properties that name its resource, its Kubernetes namespace and its Kubernetes cluster.

The operator (formats 1 and 2) and the driver (format 3) use the same rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from firn.model import names
from firn.model.errors import ConflictError
from firn.model.progress import SharedOffsets


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner that the properties of a table name. A part that they do not name is empty."""

    owner: str = ""
    """Property ``firn.owner``: uid of the resource that created or adopted the table."""
    tenant: str = ""
    """Property ``firn.tenant``: Kubernetes namespace of that resource."""
    cluster: str = ""
    """Property ``firn.kubernetes-cluster``: uid of the namespace ``kube-system`` of that resource's Kubernetes cluster."""
    consent: str = ""
    """Property ``firn.adopt``: ``NAMESPACE/NAME`` of the resource that may adopt the table."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "Ownership":
        """Return the ownership that the properties of a table state.

        The operator of version 0.2.0 writes the uid of a resource into shared tables too. Their offsets still show what they are.
        """
        keys = (names.TABLE_TENANT, names.TABLE_KUBERNETES_CLUSTER, names.TABLE_ADOPT)
        shared = SharedOffsets.is_in(properties.get(names.SUMMARY_OFFSETS))
        owner = names.SHARED if shared else properties.get(names.TABLE_OWNER, "")
        return cls(owner, *(properties.get(key, "") for key in keys))


@dataclass(frozen=True, slots=True)
class Claimant:
    """A resource that uses a table, and the Kubernetes cluster whose operator manages the resource."""

    uid: str
    namespace: str = ""
    name: str = ""
    cluster: str = ""
    """Uid of the namespace ``kube-system``; empty if unknown."""
    former_clusters: tuple[str, ...] = ()
    """Clusters whose tables the configuration approves to take."""
    holds: bool = False
    """True if an earlier visit found that the table is the resource's."""
    shared: bool = False
    """True if the table is shared with other resources of the namespace, which own it together."""

    @property
    def owner(self) -> str:
        """Return the value of ``firn.owner`` of the resource's table."""
        return names.SHARED if self.shared else self.uid

    def owns(self, table: Ownership) -> bool:
        """Return whether the table is the resource's already, alone or together with others."""
        if not self.shared:
            return table.owner == self.uid
        return (table.owner, table.tenant) == (names.SHARED, self.namespace) and table.cluster in ("", self.cluster)

    def marks(self) -> dict[str, str]:
        """Return the properties that name this resource as the owner of a table."""
        marks = {
            names.TABLE_OWNER: self.owner,
            names.TABLE_TENANT: self.namespace,
            names.TABLE_KUBERNETES_CLUSTER: self.cluster,
        }
        return {key: value for key, value in marks.items() if value}

    def has_consent(self, table: Ownership) -> bool:
        """Return whether the table consents to its adoption by this resource.

        The owner needs no consent: a consent that names it is for a resource of the same name in another cluster.
        """
        return table.consent == f"{self.namespace}/{self.name}" and not self.owns(table)

    def spent(self, properties: Mapping[str, str]) -> frozenset[str]:
        """Return the properties to remove from a table that this resource takes: a consent counts once."""
        return frozenset({names.TABLE_ADOPT}) if self.has_consent(Ownership.of(properties)) else frozenset()

    def check(self, identifier: str, table: Ownership) -> None:
        """Raise ConflictError if the table belongs to another control plane, or to one topic and this one wants to share it."""
        self._check_sharing(identifier, table)
        if self.owns(table) or self.has_consent(table):
            return
        approval = f"to take it, set its property {names.TABLE_ADOPT} to {self.namespace}/{self.name}"
        if self.cluster and table.cluster not in ("", self.cluster, *self.former_clusters):
            recorded = table.cluster
            raise ConflictError(
                f"table {identifier} belongs to Kubernetes cluster {recorded}, and this is cluster {self.cluster}; {approval}, or for all"
                " tables of that cluster, add it to formerClusters in the operator's configuration"
            )
        if self.holds and table.tenant not in ("", self.namespace):
            raise ConflictError(
                f"table {identifier} now belongs to a namespace of another installation of Firn, which its property {names.TABLE_TENANT} names;"
                f" {approval}, or delete this IcebergTopic"
            )

    def _check_sharing(self, identifier: str, table: Ownership) -> None:
        if not table.owner or (table.owner == names.SHARED) == self.shared:
            return
        if self.shared:
            raise ConflictError(
                f"table {identifier} was made for one topic, so it cannot be shared; create this IcebergTopic again with another"
                " table.name, or without table.shared"
            )
        raise ConflictError(
            f"table {identifier} is shared by topics; to land in it, create this IcebergTopic again with table.shared: true, or use another"
            " table.name"
        )
