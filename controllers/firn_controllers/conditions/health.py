"""How something is that many topics depend on: brokers, a catalog, an ingestion group."""

from dataclasses import dataclass

from firn.model.conditions import Reason


@dataclass(frozen=True, slots=True)
class DependencyHealth:
    """``problem`` is None while it serves topics; ``stalled`` where time alone does not end the problem; ``rolling`` while its pods are
    replaced. Equal healths wake nobody."""

    problem: Reason | None = None
    message: str = ""
    rolling: bool = False
    stalled: bool = False
