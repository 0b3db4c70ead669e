"""List the packages of an image that the build made."""

import json
from pathlib import Path

from hack.localcluster.images import sbom
from hack.localcluster.images.build import chosen_builder

ROOT = Path(__file__).resolve().parents[3]


def test_the_list_of_an_image_has_its_packages_and_the_modules_of_its_program() -> None:
    reference = json.loads((ROOT / ".cluster" / "images.json").read_text())["firn-s3"]
    document = sbom.document("firn-s3", "1", chosen_builder().parts(reference))
    purls = {component["purl"].partition("@")[0]: component for component in document["components"]}
    assert {"pkg:deb/debian/libc6", "pkg:golang/stdlib", "pkg:golang/github.com/versity/versitygw"} <= purls.keys()
    places = purls["pkg:golang/github.com/versity/versitygw"]["evidence"]["occurrences"]
    assert [place["location"].rpartition("/")[2] for place in places] == ["versitygw"]
