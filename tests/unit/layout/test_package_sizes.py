"""A package holds at most ten modules, or modules of one kind only."""

from collections import Counter

from tests.unit.layout.sources import PRODUCT, files, relative

MOST = 10
ONE_KIND = {
    "broker/firn_broker/apis": "one Kafka API a module",
    "hack/bench/benchmarks": "one benchmark a module",
}


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
