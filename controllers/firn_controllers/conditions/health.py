"""Health of a dependency that many topics share: brokers, a catalog, an ingestion group."""

from dataclasses import dataclass

from firn.model.conditions import Reason


@dataclass(frozen=True, slots=True)
class DependencyHealth:
    """Health of a dependency. A reconciler wakes the topics only if the health differs from the last one.

    ``problem`` is None while the dependency serves topics. ``stalled``: waiting does not solve the problem.
    ``rolling``: its pods are being replaced. ``recent``: the problem began a moment ago, and topics that were ready
    do not show it yet.
    """

    problem: Reason | None = None
    message: str = ""
    rolling: bool = False
    stalled: bool = False
    recent: bool = False
