"""A package holds at most ten modules, or modules of one kind only."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.unit.layout.sources import PRODUCT, files, relative

MOST = 10
ONE_KIND = {
    "broker/firn_broker/apis": {"KEY", "VERSIONS", "handle"},
    "hack/bench/benchmarks": {"measure"},
}
"""Packages with a module for each Kafka API, or each benchmark -> the names that each of their modules defines."""


def test_a_package_holds_at_most_ten_modules() -> None:
    modules = Counter(relative(path.parent) for path in files(*PRODUCT, "hack") if path.name != "__init__.py")
    large = {package for package, count in modules.items() if count > MOST}
    assert large - set(ONE_KIND) == set(), f"packages of more than {MOST} modules"
    assert set(ONE_KIND) - large == set(), "delete these from ONE_KIND"


def test_helpers_of_tests_have_packages_of_at_most_ten_modules() -> None:
    helpers = Counter(
        relative(path.parent) for path in files("tests") if not path.name.startswith(("test_", "conftest", "__init__"))
    )
    assert {package for package, count in helpers.items() if count > MOST} == set()


def test_modules_of_a_large_package_are_of_one_kind() -> None:
    for package, names in ONE_KIND.items():
        for path in files(package):
            if path.name != "__init__.py":
                assert names <= set(_defined(ast.parse(path.read_text()))), relative(path)


def _defined(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.ImportFrom(names=names):
                yield from (each.asname or each.name for each in names)
