"""Write the reference pages from the code. With --check, name those that differ.

`make generate` runs `python -m hack.reference` after `hack/generate`, which needs nothing but the models.
"""

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer.main
import yaml
from prometheus_client import REGISTRY
from prometheus_client.registry import CollectorRegistry

import firn_broker.__main__ as broker_process
import firn_broker.metrics  # noqa: F401 (registers the metrics of the broker)
import firn_operator.adapters.kube.api_client  # noqa: F401 (registers the metric of Kubernetes requests)
from firn.model.errors import ExitCode
from firn_broker.settings import BrokerSettings
from firn_operator.cli.main import app
from firn_operator.cli.resources.plan import PlanCode
from firn_operator.process import telemetry
from firn_spark.ingestion.progress import Metrics
from hack.vocabulary import conditions, messages

REPOSITORY = Path(__file__).resolve().parents[1]
Schema = Mapping[str, Any]
NOTE = "`make generate` writes this page from the code."
SUFFIXES = {"counter": "_total"}
EXIT_CODES = {
    ExitCode.DONE: "success",
    ExitCode.BUG: "a bug in Firn; please report it with the log",
    ExitCode.CONFIGURATION: "wrong configuration or unreadable input; correct the value in the message",
    ExitCode.CORRUPT: "inconsistent data: records that `firn audit` reports as missing, doubled or stray, objects that `firn-broker fsck` reports, "
    "or corrupt metadata",
    ExitCode.TEMPORARY: "a temporary failure; retry later",
    ExitCode.OUT_OF_MEMORY: "the heap of the JVM is exhausted; raise its size",
}
CODES_OF_COMMANDS = {
    PlanCode.CHANGES: "`firn plan` only: applying the manifests changes something",
    PlanCode.REFUSED: "`firn plan`: a manifest is refused. `firn status`: a topic is not Ready",
    PlanCode.NO_PLAN: "`firn plan` only: no plan could be made, because of wrong arguments, unreadable files or missing rights",
}


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(*heading: str) -> list[str]:
    """Return the head of a Markdown table."""
    return [row(*heading), "|" + "---|" * len(heading)]


def wrapped(text: str) -> str:
    """Return a paragraph in lines of at most 118 characters."""
    return textwrap.fill(plain(text), 118, break_long_words=False, break_on_hyphens=False)


def plain(text: str) -> str:
    """Return a docstring as one line of Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))


# Settings


def type_of(schema: Schema) -> str:
    """Describe the type of a key; a section is a link to its heading."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "then" in schema:
        return f"{type_of(schema['else'])} or {type_of(schema['then'])}"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(type_of(item) for item in schema[key] if item.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    for key in ("additionalProperties", "patternProperties"):
        values = schema.get(key)
        if isinstance(values, dict):
            return f"map of {type_of(next(iter(values.values())) if key == 'patternProperties' else values)}"
    return str(schema.get("type", "any value"))


def bounds_of(schema: Schema) -> str:
    """Describe the bounds of a number."""
    words = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than"}
    return ", ".join(f"{text} {schema[key]}" for key, text in words.items() if key in schema)


def keys(section: Schema, defaults: Any) -> Iterator[str]:
    """Yield a row for each key of a section."""
    given = defaults if isinstance(defaults, dict) else {}
    for name, schema in section.get("properties", {}).items():
        default = given.get(name, schema.get("default"))
        shown = "" if default is None or isinstance(default, dict) else f"`{json.dumps(default, ensure_ascii=False)}`"
        described = plain(schema.get("description", "")).rstrip(".")
        meaning = ". ".join(filter(None, (described, bounds_of(schema).capitalize())))
        yield row(f"`{name}`", type_of(schema), shown, f"{meaning}." if meaning else "")


def sections(root: Schema, title: str, defaults: Any) -> Iterator[str]:
    """Yield the tables of a schema: its own keys, then each section that it refers to."""
    yield from ("", f"## {title}", "", *table("key", "type", "default", "meaning"), *keys(root, defaults))
    for name, section in root.get("$defs", {}).items():
        if "properties" not in section:
            continue
        default_section = next(
            (
                defaults.get(key)
                for key, item in root["properties"].items()
                if item.get("$ref", "").endswith(f"/{name}")
            ),
            None,
        )
        yield from ("", f"### {name}", "")
        if section.get("description"):
            yield from (wrapped(section["description"]), "")
        yield from (*table("key", "type", "default", "meaning"), *keys(section, default_section))


def values() -> str:
    """Return the page of the chart's values."""
    schema = json.loads((REPOSITORY / "charts/firn/values.schema.json").read_text())
    defaults = yaml.safe_load((REPOSITORY / "charts/firn/values.yaml").read_text())
    head = [
        "# Values of the chart",
        "",
        wrapped(
            f"{NOTE} Helm and the operator reject keys that are not listed. `charts/firn/values.yaml` has the defaults with"
            " comments, and `charts/firn/values-production.yaml` is an example."
        ),
    ]
    return page([*head, *sections(schema, "Values", defaults)])


def broker_settings() -> str:
    """Return the page of the broker's settings."""
    schema = BrokerSettings.model_json_schema()
    head = [
        "# Settings of the diskless broker",
        "",
        wrapped(
            f"{NOTE} `firn-broker --config FILE` reads them as YAML. The operator writes this file for the brokers of a"
            " profile, and `config` of the profile adds keys. An environment variable overrides a key:"
            " `FIRN_BROKER_WRITER__FLUSH_SECONDS=0.5` sets `writer.flushSeconds`."
        ),
    ]
    return page([*head, *sections(schema, "Settings", {})])


# Metrics


def collectors(registry: CollectorRegistry) -> list[Any]:
    """Return the metrics of a registry, each once."""
    return list(dict.fromkeys(registry._collector_to_names))


def metrics_of(families: Iterable[Any]) -> Iterator[str]:
    """Yield a row for each metric of Firn."""
    rows = {}
    for metric in families:
        name = getattr(metric, "_name", getattr(metric, "name", ""))
        if name.startswith("firn_"):
            kind = getattr(metric, "_type", getattr(metric, "type", ""))
            labels = ", ".join(f"`{label}`" for label in getattr(metric, "_labelnames", ()))
            text = getattr(metric, "_documentation", getattr(metric, "documentation", ""))
            rows[name] = row(f"`{name}{SUFFIXES.get(kind, '')}`", kind, labels, plain(text))
    return iter(rows[name] for name in sorted(rows))


def metrics() -> str:
    """Return the page of all metrics."""
    computed: list[Any] = [
        *telemetry.DebtMetrics(lambda: ()).collect(),
        *telemetry.LogMetrics(lambda: (), lambda _: None).collect(),
        *telemetry.AuditMetrics(lambda: ()).collect(),
        *telemetry.TopicSetMetrics(lambda: ()).collect(),
        *telemetry.TopicUserMetrics(lambda: ()).collect(),
        *telemetry.CertificateMetrics(dict).collect(),
        *telemetry.OpenFleetMetrics(dict).collect(),
        *telemetry.PlainClientMetrics(dict).collect(),
    ]
    signer = [*telemetry.CertificateMetrics(dict).collect(), *telemetry.StoreCertificateMetrics(dict).collect()]
    shared = collectors(REGISTRY)
    broker = [metric for metric in shared if getattr(metric, "_name", "").startswith("firn_broker_")]
    groups = (
        (
            "Operator",
            "Port `metrics` of the Service `firn-operator`.",
            [metric for metric in shared if metric not in broker] + computed,
        ),
        (
            "Ingestion driver",
            "`/metrics` on port `progress` of the Services `firn-ingest-GROUP`.",
            collectors(Metrics().registry),
        ),
        (
            "Signer",
            "Port `metrics` of the Service `firn-signer`, if a profile has `selfSigned`, or stores of the quick start have TLS.",
            signer,
        ),
        ("Diskless broker", "Port `metrics` of the Services `firn-broker-PROFILE`.", broker),
    )
    lines = [
        "# Metrics",
        "",
        wrapped(f"{NOTE} A histogram `NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`."),
    ]
    for title, where, families in groups:
        lines += [
            "",
            f"## {title}",
            "",
            where,
            "",
            *table("metric", "kind", "labels", "meaning"),
            *metrics_of(families),
        ]
    return page(lines)


# Commands


def commands() -> str:
    """Return the page of the command line tools."""
    lines = ["# Commands", "", NOTE, "", "## firn", "", wrapped(app.info.help or "")]
    for name, command in sorted(_commands(typer.main.get_command(app))):
        lines += ["", f"### firn {name}", ""]
        lines += [wrapped(paragraph) + "\n" for paragraph in (command.help or "").split("\n\n")]
        if command.params:
            lines += table("argument or option", "default", "meaning")
        for parameter in command.params:
            words = ", ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name.upper()
            default = getattr(parameter.default, "value", parameter.default)
            shown = "" if default is None or parameter.required else f"`{default}`"
            lines.append(row(f"`{words}`", shown, plain(getattr(parameter, "help", "") or "")))
    broker = broker_process.command_line()
    broker.formatter_class = partial(argparse.HelpFormatter, width=100)
    lines += ["", "## firn-broker", "", "```", broker.format_help().rstrip(), "```"]
    lines += ["", "## Exit codes", "", *table("code", "meaning")]
    codes = [(code.value, EXIT_CODES[code]) for code in ExitCode]
    codes += [(code.value, text) for code, text in CODES_OF_COMMANDS.items()]
    lines += [row(str(code), text) for code, text in sorted(codes, key=lambda each: each[0])]
    return page(lines)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with its name, after those of the groups around it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def page(lines: Iterable[str]) -> str:
    """Return a page with one empty line between parts."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


PAGES = {
    "docs/reference/values.md": values,
    "docs/reference/broker-settings.md": broker_settings,
    "docs/reference/metrics.md": metrics,
    "docs/reference/commands.md": commands,
    "docs/reference/conditions.md": conditions.markdown,
    "docs/reference/messages.md": messages.markdown,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check name those that differ."""
    stale = {name: content for name, make in PAGES.items() if (content := make()) != current(name)}
    for name, content in stale.items():
        if arguments == ["--check"]:
            print(f"{name} differs from the code: run make generate", file=sys.stderr)
        else:
            (REPOSITORY / name).write_text(content)
            print(f"wrote {name}")
    return 1 if stale and arguments == ["--check"] else 0


def current(name: str) -> str | None:
    """Return the content of a page, or None if it does not exist."""
    path = REPOSITORY / name
    return path.read_text() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
