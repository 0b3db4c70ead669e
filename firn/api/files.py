"""Files that are generated from the models, by path in the repository."""

import yaml

from firn.api import chart_values, crds, reference
from firn.api.crds import Manifest

_NOTE = "Generated from firn/api by `make generate`. Do not edit."


def generated() -> dict[str, str]:
    """Return path -> content: CRDs for ``kubectl apply``, the chart's copies of them, the schema of its values, and the API reference."""
    definitions = crds.all_crds()
    files = {
        "docs/reference/api.md": reference.markdown(definitions),
        "charts/firn/values.schema.json": chart_values.json_schema(),
    }
    for crd in definitions:
        plural, _, group = crd["metadata"]["name"].partition(".")
        files[f"crds/{group}_{plural}.yaml"] = f"# {_NOTE}\n{_yaml(crd)}"
        files[f"charts/firn/templates/crd-{plural}.yaml"] = _template(crd)
    return files


def _yaml(crd: Manifest) -> str:
    return yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=120)


def _template(crd: Manifest) -> str:
    """Return the CRD as a template of the chart. Helm upgrades templates, but not the files in a chart's ``crds`` folder."""
    body = _yaml({**crd, "metadata": {**crd["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}})
    if "{{" in body:
        raise ValueError(f"{crd['metadata']['name']}: Helm would read the braces in a description as a template")
    annotations = "  annotations:\n    helm.sh/resource-policy: keep\n"
    if body.count(annotations) != 1:
        raise ValueError(f"{crd['metadata']['name']}: the manifest does not have the annotation of Helm exactly once")
    return (
        f"{{{{- /* {_NOTE} */ -}}}}\n{{{{- if .Values.crds.enabled }}}}\n"
        + body.replace(annotations, f"  {{{{- if .Values.crds.keep }}}}\n{annotations}  {{{{- end }}}}\n")
        + "{{- end }}\n"
    )


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, and with list items indented."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)
