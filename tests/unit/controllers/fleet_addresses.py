"""External addresses of brokers, which the start scripts of both kinds of fleets compute."""

from typing import Any

NODE_PORT: dict[str, Any] = {"host": "kafka.example", "port": 31000}
OWN_NODE: dict[str, Any] = {"port": 31000}
LOAD_BALANCER: dict[str, Any] = {"type": "LoadBalancer", "hosts": ["a.example", "b.example", "c.example"]}
OF_BROKER_1 = {
    "a node port": (NODE_PORT, "kafka.example:31002"),
    "a node port on the broker's own node": (OWN_NODE, "10.0.0.9:31002"),
    "a load balancer": (LOAD_BALANCER, "b.example:9094"),
}
"""Configuration of the profile, and the address of its broker 1 on a node with the address 10.0.0.9."""
