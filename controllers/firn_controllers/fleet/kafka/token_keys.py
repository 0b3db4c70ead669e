"""The keys that verify tokens of ServiceAccounts, in a ConfigMap that the brokers mount.

Kafka cannot ask the API server for them, because it sends no token of its own with the request. It reads a changed file again.
"""

from firn.model import names
from firn.model.errors import FirnError
from firn_controllers import children
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.fleet.kafka.listeners import KEYS_FILE
from firn_controllers.ports import Manifest


def name(fleet: KafkaFleet) -> str:
    """Return the name of the ConfigMap, ``firn-broker-P-keys``."""
    return f"{fleet.service}-keys"


def problem(error: FirnError) -> str:
    """Return the message about keys that the operator cannot read, because of ``error``."""
    return (
        f"the operator cannot read the keys of ServiceAccount tokens: {error}; brokers check tokens with the keys that they have; see"
        " whether ClusterRole system:service-account-issuer-discovery is bound to all ServiceAccounts"
    )


def build(fleet: KafkaFleet, keys: str) -> Manifest:
    """Build the ConfigMap with ``keys``, a JSON Web Key Set."""
    # The labels of the fleet select the configurations that a roll-out leaves behind.
    labels = {children.COMPONENT: "token-keys", names.LABEL_PROFILE: fleet.name}
    return children.child_object("v1", "ConfigMap", name(fleet), fleet.owner, labels, data={KEYS_FILE: keys})
