"""No class has more than 400 lines, and no function more than 60."""

import ast
import re

from tests.unit.layout.sources import PRODUCT, files, relative, tree

LONGEST_CLASS = 400
LONGEST_FUNCTION = 60
AVRO, JSON = (f"spark_apps/firn_spark/worker/formats/{name}/kernel.py" for name in ("avro", "json"))
VARIANTS = JSON.replace("kernel", "variant_kernel")
KERNELS = {
    *((JSON, name) for name in ("_field", "_record", "read_records", "find_entries")),
    (AVRO, "_after_value"),
    (VARIANTS, "_parsed"),
}
"""Functions of the compiled readers. A call costs time for each record."""
_AT_THE_MARGIN = re.compile(r"(?m)^(?=@|def |async def |class )")


def test_no_class_is_longer_than_400_lines() -> None:
    assert longer_than(LONGEST_CLASS, ast.ClassDef) == set(), f"classes of more than {LONGEST_CLASS} lines"


def test_no_function_is_longer_than_60_lines() -> None:
    long = longer_than(LONGEST_FUNCTION, ast.FunctionDef, ast.AsyncFunctionDef)
    assert long >= KERNELS, "delete the others from KERNELS"
    assert long == KERNELS, f"functions of more than {LONGEST_FUNCTION} lines"


def longer_than(
    limit: int, *kinds: type[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]
) -> set[tuple[str, str]]:
    """Return file and name of the definitions of these kinds that have more than ``limit`` lines."""
    long = set()
    for path in files(*PRODUCT, "hack", "tests"):
        blocks = _AT_THE_MARGIN.split(path.read_text())
        if max(block.count("\n") for block in blocks) < limit:
            continue  # parsing every file would take seconds
        for node in ast.walk(tree(path)):
            if isinstance(node, kinds):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= limit:
                    long.add((relative(path), node.name))
    return long
