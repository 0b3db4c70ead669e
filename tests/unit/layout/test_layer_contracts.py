"""Each package of two or more modules has a layer contract in pyproject.toml. The contract lists every module."""

import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.unit.layout.sources import PRODUCT, ROOT, files

OPTIONS = {"name", "type", "containers", "exhaustive", "layers"}
"""Options of a layer contract. `ignore_imports` and `exhaustive_ignores` would exempt imports and modules."""

EXEMPTING = {"ignore_imports", "skip_descendants", "unmatched_ignore_imports_alerting"}
"""Options with which any contract would stop checking some imports."""


def test_every_package_has_one_layer_contract() -> None:
    contracts = Counter(package for contract in _contracts() for package in contract["containers"])
    assert {package for package, count in contracts.items() if count > 1} == set(), "packages of several contracts"
    packages = {package for package, modules in _packages().items() if len(modules) > 1}
    assert packages - set(contracts) == set(), "packages without a layer contract in pyproject.toml"
    assert set(contracts) - packages == set(), "contracts of packages that have no two modules"


def test_layer_contracts_list_every_module() -> None:
    partial = {contract["name"] for contract in _contracts() if contract.get("exhaustive") is not True}
    assert partial == set(), "contracts without `exhaustive = true`"


def test_layer_contracts_have_no_exemption() -> None:
    assert {option for contract in _contracts() for option in contract} - OPTIONS == set()


def test_no_contract_ignores_an_import() -> None:
    contracts = _pyproject()["importlinter"]["contracts"]
    exempting = {contract["name"] for contract in contracts if EXEMPTING & set(contract)}
    assert exempting == set(), f"contracts with one of the options {sorted(EXEMPTING)}"


def test_mypy_checks_product_tests_and_tools() -> None:
    assert set(_pyproject()["mypy"]["files"]) == {*PRODUCT, "hack", "tests", "docs"}


def _pyproject() -> dict[str, Any]:
    """Return the configuration of the tools."""
    tools: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return tools


def _contracts() -> Iterator[dict[str, Any]]:
    """Yield the layer contracts inside packages."""
    for contract in _pyproject()["importlinter"]["contracts"]:
        if contract["type"] == "layers" and "containers" in contract:
            yield contract


def _packages() -> dict[str, set[str]]:
    """Return the modules and packages directly inside each package, by the name of the package."""
    packages = dict[str, set[str]]()
    for root in (*PRODUCT, "hack"):
        for path in files(root):
            parts = path.relative_to((ROOT / root).parent).with_suffix("").parts
            for depth in range(1, len(parts)):
                packages.setdefault(".".join(parts[:depth]), set()).add(parts[depth])
    return {package: modules - {"__init__"} for package, modules in packages.items()}
