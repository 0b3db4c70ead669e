"""Lists of the packages in images: each kind of package is found, and the documents follow CycloneDX's schema."""

import io
import json
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from hack.localcluster.images import build, contents, sbom
from hack.localcluster.images.build import Engine
from hack.support.progress import Failure
from tests.chart import helm

STATUS = """\
Package: tini
Status: install ok installed
Architecture: amd64
Version: 0.19.0-1+b3

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2:2.36-9+deb12u13
Description: a package
 with several lines
"""
KOPF = "Metadata-Version: 2.4\nName: Kopf_Framework\nVersion: 1.38.0\nLicense-Expression: MIT\n\nText.\n"
SITE = "opt/firn/venv/lib/python3.11/site-packages"


def jar(*coordinates: tuple[str, str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for group, name, version in coordinates:
            text = f"#Generated\ngroupId={group}\nartifactId={name}\nversion={version}\n"
            archive.writestr(f"META-INF/maven/{group}/{name}/pom.properties", text)
    return content.getvalue()


def layer(path: Path, files: Mapping[str, bytes], *, packed: bool = True) -> Path:
    with tarfile.open(path, "w:gz" if packed else "w") as archive:
        for name, content in files.items():
            header = tarfile.TarInfo(name)
            header.size, header.mode = len(content), 0o755
            archive.addfile(header, io.BytesIO(content))
    return path


BASE = {
    "var/lib/dpkg/status": STATUS.encode(),
    f"{SITE}/kopf-1.38.0.dist-info/METADATA": KOPF.encode(),
    f"{SITE}/pip-25.dist-info/METADATA": b"Name: pip\nVersion: 25.0\n",
    "opt/jars/iceberg-runtime-1.10.0.jar": jar(
        ("org.iceberg", "iceberg-runtime", "1.10.0"), ("com.google", "guava", "33")
    ),
    "opt/jars/scala-library-2.13.16.jar": jar(),
    "opt/jars/old-1.0.jar": jar(("org.old", "old", "1.0")),
    "usr/bin/tool": b"#!/bin/sh\n",
    "home/notes.txt": b"no package",
}
CHANGES = {f"{SITE}/.wh.pip-25.dist-info": b"", "opt/jars/.wh.old-1.0.jar": b"", "opt/firn/app/firn.py": b""}
FOUND = {
    "pkg:deb/debian/tini@0.19.0-1%2Bb3?arch=amd64",
    "pkg:deb/debian/libc6@2%3A2.36-9%2Bdeb12u13?arch=amd64",
    "pkg:pypi/kopf-framework@1.38.0",
    "pkg:maven/org.iceberg/iceberg-runtime@1.10.0",
    "pkg:maven/com.google/guava@33",
}


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    return [layer(tmp_path / "base", BASE), layer(tmp_path / "code", CHANGES)]


def purls(document: Mapping[str, Any]) -> set[str]:
    return {component["purl"] for component in document["components"]}


def validate(document: Mapping[str, Any]) -> None:
    folder = resources.files("cyclonedx.schema") / "_res"
    schemas = {
        name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text())
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    known = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in schemas.values())
    jsonschema.Draft7Validator(schemas["bom-1.6"], registry=known).validate(document)


def test_a_list_has_the_packages_of_each_kind_that_the_last_layer_leaves(layers: list[Path]) -> None:
    document = sbom.document("firn-operator", "1.2", contents.of_layers(layers))
    validate(document)
    others = purls(document) - FOUND
    assert purls(document) >= FOUND
    assert [purl.partition("?")[0] for purl in others] == ["pkg:generic/scala-library@2.13.16"]
    by_name = {component["name"]: component for component in document["components"]}
    assert by_name["Kopf_Framework"]["licenses"] == [{"expression": "MIT"}]
    assert by_name["iceberg-runtime"]["group"] == "org.iceberg"
    assert by_name["iceberg-runtime"]["hashes"][0]["alg"] == "SHA-256"
    assert "hashes" not in by_name["guava"], "the hash is that of the jar that bundles it"
    place = "/opt/jars/iceberg-runtime-1.10.0.jar"
    assert by_name["guava"]["evidence"] == {"occurrences": [{"location": place}]}


def test_an_opaque_directory_hides_the_packages_below_it(tmp_path: Path) -> None:
    base = layer(tmp_path / "base", BASE)
    above = layer(tmp_path / "above", {"opt/jars/.wh..wh..opq": b""})
    found = contents.of_layers([base, above])
    assert {path.partition("/")[0] for path in found} == {"var", "opt"}
    assert not [path for path in found if path.endswith(".jar")]


def test_a_list_is_the_same_for_the_same_image(layers: list[Path]) -> None:
    first, second = (sbom.document("firn-operator", "1.2", contents.of_layers(layers)) for _ in range(2))
    assert first == second
    changed = sbom.document("firn-operator", "1.2", contents.of_layers(layers[:1]))
    assert changed["serialNumber"] != first["serialNumber"]


def test_the_modules_of_a_go_program_are_listed(tmp_path: Path) -> None:
    program = layer(tmp_path / "layer", {"usr/local/bin/helm": Path(helm()).read_bytes()}, packed=False)
    document = sbom.document("tools", "1", contents.of_layers([program]))
    validate(document)
    assert {purl.partition("@")[0] for purl in purls(document)} >= {"pkg:golang/stdlib", "pkg:golang/helm.sh/helm/v3"}


def test_without_go_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = layer(tmp_path / "layer", {"usr/local/bin/tool": b"ELF \xff Go buildinf: ..."}, packed=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Failure, match=r"^go is not installed or not on PATH .*; install it$"):
        contents.of_layers([program])


def test_an_engine_lists_the_file_system_that_it_exports(layers: list[Path], tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text(f'#!/bin/sh\n[ "$1" = export ] && gunzip < {layers[0]} || echo id\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    document = sbom.document("firn-operator", "1.2", Engine(str(program)).parts("localhost/firn-operator:1"))
    assert purls(document) >= FOUND | {"pkg:pypi/pip@25.0", "pkg:maven/org.old/old@1.0"}


def test_each_image_has_a_file(layers: list[Path], tmp_path: Path) -> None:
    class Built:
        def has(self, reference: str) -> bool:
            return True

        def build(self, reference: str, chosen: build.Image) -> None:
            raise AssertionError(reference)

        def parts(self, reference: str) -> dict[str, list[contents.Part]]:
            assert reference == f"localhost/firn-broker:{build.image('firn-broker').tag()}"
            return contents.of_layers(layers)

    build.write_sboms(["firn-broker"], Built(), tmp_path / "sbom", "1.2")
    document = json.loads((tmp_path / "sbom" / "firn-broker.cdx.json").read_text())
    validate(document)
    assert document["metadata"]["component"]["version"] == "1.2"


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        (["--push", "registry.example.com/data"], "dist/sbom"),
        (["--push", "registry.example.com/data", "--sbom", "lists"], "lists"),
        (["--sbom", "lists"], "lists"),
        ([], None),
    ],
)
def test_each_push_lists_the_packages(words: list[str], directory: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(build, "push_all", lambda names, *_: dict.fromkeys(names, "reference"))
    monkeypatch.setattr(build, "build_all", lambda names: dict.fromkeys(names, "reference"))
    monkeypatch.setattr(build, "chosen_builder", lambda: None)
    monkeypatch.setattr(build, "write_sboms", lambda names, _, place, tag: written.append((names, str(place), tag)))
    assert build.main(["firn-operator", *words, "--tag", "7"]) == 0
    assert written == ([(["firn-operator"], directory, "7")] if directory else [])
