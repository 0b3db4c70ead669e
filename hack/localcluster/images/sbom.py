"""Software bills of materials (SBOM) of images, as CycloneDX 1.6 in JSON (ECMA-424).

The document of the same image is always the same: it has no time, and its serial number comes from its content.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from hack.localcluster.images.contents import Part


def document(name: str, version: str, found: Mapping[str, list[Part]]) -> dict[str, Any]:
    """Return the document of an image. ``found`` has the parts by the file that names them."""
    places: dict[Part, set[str]] = {}
    for path, parts in found.items():
        for part in parts:
            places.setdefault(part, set()).add(path)
    components = [_component(part, sorted(places[part])) for part in _distinct(places)]
    seal = hashlib.sha256(json.dumps([name, version, components]).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, seal)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": name, "name": name, "version": version}},
        "components": components,
    }


def _distinct(places: dict[Part, set[str]]) -> list[Part]:
    """Return one part for each package URL, the one with a hash first. Merge the places of the others into it."""
    by_purl: dict[str, Part] = {}
    for part in sorted(places, key=lambda each: (each.purl, not each.sha256)):
        first = by_purl.setdefault(part.purl, part)
        places[first] |= places[part]
    return list(by_purl.values())


def _component(part: Part, places: list[str]) -> dict[str, Any]:
    component: dict[str, Any] = {"type": "library", "bom-ref": part.purl, "name": part.name, "purl": part.purl}
    if part.version:
        component["version"] = part.version
    if part.group:
        component["group"] = part.group
    if part.license:
        component["licenses"] = [{"expression": part.license}]
    if part.sha256:
        component["hashes"] = [{"alg": "SHA-256", "content": part.sha256}]
    component["evidence"] = {"occurrences": [{"location": f"/{path}"} for path in places]}
    return component
