"""The command line tool ``firn``: inspect and plan topics, query tables, audit topics, check the configuration.

All commands work on any machine with a kubeconfig, also as ``kubectl firn``. ``adopt`` also needs a network in which the catalog is
reachable. ``dlq list``, ``dlq show``, ``sql``, ``audit`` and ``check`` need the operator's configuration. On a machine without it, they
run in the cluster, through ``kubectl exec``: ``sql`` in the pod of queries, the others in the operator's pod.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

import firn
from firn.model import config as configuration
from firn.model import names
from firn.model.errors import ExitCode, FirnError, InvalidSpecError, UnavailableError
from firn.model.progress import Losses

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Configuration = Annotated[
    str | None,
    typer.Option(
        "--config",
        envvar="FIRN_CONFIG",
        help=f"Path of the operator's configuration file. Default: {names.CONFIG_PATH} if it exists. Otherwise, the command runs in"
        " a pod of Firn.",
    ),
]

Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig. Default: its current one.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the resources. Default: that of the context.")
]
Release = Annotated[
    str, typer.Option("--release-namespace", help="Namespace of the operator, if the command runs in a pod of Firn.")
]
RELEASE = "firn-system"
NO_PLAN = 78
"""Exit code of ``firn plan`` without a plan. The usual one of wrong arguments is that of a plan with changes."""


class _PlanCommand(TyperCommand):
    """Gives wrong arguments an exit code that no plan has."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # The class of wrong arguments is not in typer's public interface. Its exit code is that of a plan with changes.
            if getattr(error, "exit_code", None) == ExitCode.CONFIGURATION:
                error.__dict__["exit_code"] = NO_PLAN
            raise


class Format(StrEnum):
    """Formats of the reports of resources."""

    TEXT = "text"
    JSON = "json"


class AuditOutput(StrEnum):
    """Formats of the result of an audit."""

    TABLE = "table"
    JSON = "json"


class Output(StrEnum):
    """Formats of the result of a query."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Result = Annotated[Output, typer.Option("--output", "-o", help="Format of the result: table, json or csv.")]


@app.command()
def status(
    topic: Annotated[
        str | None,
        typer.Argument(
            help="The IcebergTopic as NAME or NAMESPACE/NAME. Default: a table of all topics in the namespace."
        ),
    ] = None,
    namespace: Namespace = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Without TOPIC: list the topics of all namespaces.")
    ] = False,
    topic_set: Annotated[
        str | None, typer.Option("--topic-set", help="Show a TopicSet instead, given as NAME or NAMESPACE/NAME.")
    ] = None,
    context: Context = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="Format of the report: text or json.")] = Format.TEXT,
) -> None:
    """Show the state of a topic on one screen: conditions, topic, table, ingestion, maintenance, audits and the next step.

    The command reads the resource and its Events with the rights of your kubeconfig. The bad conditions come first, and the last
    line is the message of the most important one. Without TOPIC, topics that are not Ready come first. With --topic-set, the screen has the
    conditions of a TopicSet, its refused topics, and its IcebergTopics that are not Ready.

    The exit code is 0 if the topic or the TopicSet is Ready, or all listed topics are. It is 3 if one is not Ready, and 2 if it does not
    exist or a right is missing. It is 75 if the API server does not answer.
    """
    from firn_operator.cli.resources import connection
    from firn_operator.cli.resources import status as reports

    if topic is not None and everywhere:
        raise InvalidSpecError("-A lists the topics of all namespaces; leave out TOPIC or -A")
    if topic_set is not None and (topic is not None or everywhere):
        raise InvalidSpecError("--topic-set shows one TopicSet; leave out TOPIC and -A")
    with connection.Connection(connection.log_in(context, namespace)) as api:
        as_json = output is Format.JSON
        if topic_set is not None:
            code = reports.one_set(api, topic_set, as_json=as_json)
        elif topic is not None:
            code = reports.one(api, topic, as_json=as_json)
        else:
            code = reports.many(api, everywhere=everywhere, as_json=as_json)
    raise typer.Exit(code)


@app.command(cls=_PlanCommand)
def plan(
    filename: Annotated[
        list[str],
        typer.Option(
            "--filename", "-f", help="File or folder with manifests, or - for standard input. Can be repeated."
        ),
    ],
    namespace: Namespace = None,
    release_namespace: Annotated[
        str, typer.Option(help="Namespace of the operator, whose configuration and job contracts the plan reads.")
    ] = RELEASE,
    field_manager: Annotated[
        str, typer.Option(help="Field manager of the apply that the plan imitates, such as argocd-controller.")
    ] = "kubectl",
    context: Context = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="Format of the plan: text or json.")] = Format.TEXT,
) -> None:
    """Show what the operator would do if you applied these manifests, and change nothing.

    The plan uses the decisions of the operator and a dry run of the API server, with the rights of your kubeconfig. It lists what is
    created, changed, rewritten, restarted and refused, by field. It says which checks it left out because of a missing right.

    The exit code is 0 if applying changes nothing, 2 if it changes something, and 3 if a manifest is refused. Without a plan it is 78, for
    example because of wrong arguments or missing rights. It is 75 if the API server does not answer.
    """
    from firn_operator.cli.resources import connection
    from firn_operator.cli.resources import plan as plans

    try:
        with connection.Connection(connection.log_in(context, namespace)) as api:
            made = plans.make(api, filename, release=release_namespace, field_manager=field_manager)
    except UnavailableError:
        raise
    except FirnError as error:
        print(f"firn: {error}", file=sys.stderr)
        raise typer.Exit(plans.PlanCode.NO_PLAN) from None
    plans.print_plan(made, as_json=output is Format.JSON)
    raise typer.Exit(made.code)


SchemaFile = Annotated[
    str,
    typer.Option(
        "--schema",
        help="File with the latest schema of the values, if they name their schemas. Default: the command asks the connector's registry"
        " without credentials.",
    ),
]
IgnoreTransforms = Annotated[
    bool,
    typer.Option(
        "--ignore-transforms",
        help="Write the manifest although transforms of the connector change rows. You then list the columns in spec.schema.",
    ),
]
adopt = typer.Typer(no_args_is_help=True, help="Continue a table that another program has written.")
app.add_typer(adopt, name="adopt")


@adopt.callback()
def _adopt() -> None:
    """Keep ``connect`` a command of its own, although it is the only one."""


@adopt.command("connect")
def adopt_connect(  # noqa: PLR0913
    config: Annotated[
        str,
        typer.Option("--config", help="File with the connector's configuration as JSON, or - for standard input."),
    ],
    topic: Annotated[
        str, typer.Option("--topic", help="Name of the IcebergTopic. Default: that of the Kafka topic.")
    ] = "",
    namespace: Namespace = None,
    catalog: Annotated[
        str, typer.Option(help="Catalog of the operator's configuration with the table. Default: its default catalog.")
    ] = "",
    profile: Annotated[
        str,
        typer.Option(
            help="Profile of the operator's configuration with the Kafka topic. Default: its default profile."
        ),
    ] = "",
    registry: Annotated[
        str,
        typer.Option(
            help="Schema registry of the operator's configuration, for a connector whose values name their schemas."
        ),
    ] = "",
    message: Annotated[
        str,
        typer.Option(
            help="Full name of the record in the values, for a connector with RecordNameStrategy or TopicRecordNameStrategy."
        ),
    ] = "",
    schema: SchemaFile = "",
    ignore_transforms: IgnoreTransforms = False,
    context: Context = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: the table does not consent to its adoption.")
    ] = False,
) -> None:
    """Write the IcebergTopic that continues the table of a connector of the Apache Iceberg sink of Kafka Connect.

    The command reads the connector's configuration, and the table with the rights of its catalog properties. It sets the table property
    firn.adopt to the topic, which lets the topic adopt the table. The manifest goes to standard output, and the report to standard error.
    The report says what changes in the table, how the topic differs from the connector, and what to do next.

    If values name their schemas in a registry, the command compares the table with the columns of the latest schema. If types differ, the
    manifest has spec.schema.columns, and the report names each column.

    Applying the manifest is up to you. The driver then waits until the connector has stopped, and continues exactly where it ended.

    The exit code is 0 if the manifest is written, and 2 if no IcebergTopic can continue the table. It is 75 if the catalog does not answer.
    """
    from firn_operator.cli.adoption import connect, manifest
    from firn_operator.cli.resources import connection

    place = namespace or connection.log_in(context).namespace
    choices = manifest.Choices(place, topic, catalog, profile, registry, message, schema, ignore_transforms)
    text, report = connect.run(config, choices, dry_run=dry_run)
    print(report, file=sys.stderr)
    print(text, end="")


dlq = typer.Typer(no_args_is_help=True, help="List, show and replay the dead letters of a topic.")
app.add_typer(dlq, name="dlq")


@dlq.command("list")
def dlq_list(
    topic: Annotated[str, typer.Argument(help="The IcebergTopic as NAME or NAMESPACE/NAME.")],
    namespace: Namespace = None,
    context: Context = None,
    config: Configuration = None,
    release_namespace: Release = RELEASE,
    output: Result = Output.TABLE,
) -> None:
    """Count the dead letters of a topic by cause, with the times and generations of the first and the last one.

    The command reads the dead-letter table, so it runs in the operator's pod. Without the right to exec into this pod, use firn dlq
    replay --dry-run, which counts dead letters too.
    """
    asked = _Asked(context, namespace)
    place = asked.place(topic)
    path = _path(config)
    if path is None:
        _run_in_pod(asked, release_namespace, "dlq", "list", f"--output={output.value}", "--", place)
    from firn_operator.cli import lake, letters

    _bound_memory(path, "firn dlq list", letters.TOO_MUCH_MEMORY)
    _print_result(letters.counts(lake.Lake(configuration.load(path, private=True)), asked.topic(place)), output)


@dlq.command("show")
def dlq_show(  # noqa: PLR0913
    topic: Annotated[str, typer.Argument(help="The IcebergTopic as NAME or NAMESPACE/NAME.")],
    code: Annotated[
        list[str] | None, typer.Option("--code", help="Only letters with this cause. Can be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Largest number of letters.")] = 20,
    values: Annotated[
        bool,
        typer.Option(
            "--values",
            help="Show keys, values, headers, and details of errors, which may quote values. *** stands for what the spec masks or hashes.",
        ),
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    config: Configuration = None,
    release_namespace: Release = RELEASE,
    output: Result = Output.TABLE,
) -> None:
    """Show the newest dead letters of a topic.

    Without --values, the command shows places and causes only. Bytes are shown as text, or in hexadecimal digits after 0x if they are
    not UTF-8. The command reads the dead-letter table, so it runs in the operator's pod.

    If the spec masks or hashes a field, a header or the key, the command shows *** in its place. It also shows *** for all details
    of errors, and for the whole value if it does not find the field. Places of errors then have *** for names that the spec lacks.
    """
    asked = _Asked(context, namespace)
    place = asked.place(topic)
    path = _path(config)
    if path is None:
        chosen = [*(f"--code={each}" for each in code or ()), f"--limit={limit}", *(["--values"] if values else [])]
        _run_in_pod(asked, release_namespace, "dlq", "show", *chosen, f"--output={output.value}", "--", place)
    from firn_operator.cli import lake, letters

    _bound_memory(path, "firn dlq show", letters.TOO_MUCH_MEMORY)
    opened = lake.Lake(configuration.load(path, private=True))
    _print_result(letters.letters(opened, asked.topic(place), code or (), limit, values=values), output)


@dlq.command("replay", cls=_PlanCommand)
def dlq_replay(
    topic: Annotated[str, typer.Argument(help="The IcebergTopic as NAME or NAMESPACE/NAME.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Commit nothing, and count the letters that would become rows.")
    ] = False,
    code: Annotated[
        list[str] | None, typer.Option("--code", help="Only letters with this cause. Can be repeated.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            help="Only letters that landed since a time, a date (in UTC), or a duration before now, such as 2d."
        ),
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Largest number of letters to decode.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="Format of the result: text or json.")] = Format.TEXT,
) -> None:
    """Decode the dead letters of a topic with its current schema, and move those that fit into its table.

    The command creates a DeadLetterReplay with the rights of your kubeconfig, and follows it to its end. A maintenance run does the
    work. If you stop the command, the replay goes on.

    The exit code is 0 if the replay has ended, and 2 if --dry-run found letters that would become rows. It is 3 if the replay failed, or
    cannot start until you act. Without a replay it is 78, for example because of wrong arguments or missing rights. It is 75 if the API
    server does not answer, or the replay has not ended after 65 minutes.
    """
    from firn_operator.cli.resources import connection
    from firn_operator.cli.resources import replay as replays

    order = replays.Order(topic, dry_run, code or (), since, limit)
    try:
        with connection.Connection(connection.log_in(context, namespace)) as api:
            result = replays.run(api, order, as_json=output is Format.JSON)
    except UnavailableError:
        raise
    except FirnError as error:
        print(f"firn: {error}", file=sys.stderr)
        raise typer.Exit(replays.ReplayCode.NO_REPLAY) from None
    raise typer.Exit(result)


@app.command()
def sql(
    statement: Annotated[
        str, typer.Argument(help="One SELECT statement, or 'show tables'. Name tables as CATALOG.NAMESPACE.NAME.")
    ],
    context: Context = None,
    config: Configuration = None,
    release_namespace: Release = RELEASE,
    output: Result = Output.TABLE,
    max_rows: Annotated[
        int,
        typer.Option(
            min=1, max=10_000_000, help="Largest number of rows of the result. The command says if it leaves out rows."
        ),
    ] = 10_000,
    max_bytes: Annotated[
        int, typer.Option(min=1, help="Largest number of bytes of data files that the statement reads.")
    ] = 10 * 1024**3,
) -> None:
    """Run a query on the Iceberg tables, with DuckDB.

    DuckDB reads the current snapshots. Timestamps with a zone are in UTC. As a table, bytes are shown as text, or in
    hexadecimal digits after 0x if they are not UTF-8. As JSON, bytes are in hexadecimal digits.

    The statement reaches the tables that it names, and neither files nor the network. Files are read only if they may have
    matching rows, and only their selected columns. A statement that exceeds --max-bytes, or the memory or the deadline of its pod, fails.

    On a machine without the operator's configuration, the statement runs in pod firn-query-0, which has no other task.
    """
    path = _path(config)
    if path is None:
        bounds = [f"--max-rows={max_rows}", f"--max-bytes={max_bytes}"]
        _run_in_pod(_Asked(context), release_namespace, "sql", *bounds, f"--output={output.value}", "--", statement)
    pod = os.environ.get(names.QUERY_POD)
    if pod and path == names.CONFIG_PATH:
        raise InvalidSpecError(
            f"firn sql runs in pod {pod}, and not in the operator's container, whose memory it would take: type firn sql on your machine, or run"
            f" kubectl -n {os.environ.get('POD_NAMESPACE', RELEASE)} exec {pod} -- firn sql"
        )
    # DuckDB does not end for Ctrl-C before the end of the query. A query changes nothing, so it can end anywhere.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Arrow and DuckDB take seconds to import, and the other commands do not need them.
    from firn_operator.cli import lake, memory, query

    _bound_memory(path, "firn sql", query.TOO_MUCH_MEMORY)
    result = query.run(
        lake.Lake(configuration.load(path, private=True)),
        statement,
        query.Limits(max_rows, max_bytes, f"{memory.most() // 2**21}MiB"),
        lambda text: typer.echo(text, err=True),
    )
    _print_result(result, output)


@app.command()
def audit(
    topic: Annotated[str, typer.Argument(help="The IcebergTopic as NAME or NAMESPACE/NAME.")],
    namespace: Namespace = None,
    context: Context = None,
    config: Configuration = None,
    release_namespace: Release = RELEASE,
    output: Annotated[
        AuditOutput, typer.Option("--output", "-o", help="Format of the result: table or json.")
    ] = AuditOutput.TABLE,
) -> None:
    """Prove that every record of a topic is in its table or its dead letters, exactly once.

    The audit compares all offsets that the brokers still have, up to the landed offsets. It says how many offsets wait to land after them.
    Rows of older offsets are only checked for doubles and counted. The command ends with exit code 4 if a record is missing, doubled or stray.

    Columns: "log start" and "landed to" are the first offset in the log and the next offset to land. "log records" counts the records
    between these two offsets. "rows" counts all rows of the partition, and "dead letters" counts its dead letters below "landed to".
    "missing" counts records that are in neither table. "doubled" counts offsets with several rows. "stray" counts rows whose offset the log
    does not have. Offsets in the table property firn.lost are in none of these counts; the notes list them.

    The audit of a topic with spec.routes compares all its tables. In a shared table, it compares the rows of this topic. With
    schema.filter, the table records how many records the filter left out, and the audit expects no rows for so many records.

    "unproved" counts offsets for which the audit cannot decide. These are records that compaction has removed from the log, and missing
    records where onBadRecord is Skip or a RetentionPolicy removes rows. Missing records before the offsets in the table property
    firn.audit-from are unproved too, such as those before the offsets of spec.ingestion.adopt. The audit leaves out rows of an earlier
    topic of the same name, while the table still has the last snapshot of that topic.
    """
    asked = _Asked(context, namespace)
    place = asked.place(topic)
    path = _path(config)
    if path is None:
        _run_in_pod(asked, release_namespace, "audit", f"--output={output.value}", "--", place)
    from firn_operator.cli import audit as audits

    _bound_memory(path, "firn audit", audits.TOO_MUCH_MEMORY)
    manifest = asked.topic(place)
    result = audits.audit_resource(
        configuration.load(path, private=True),
        manifest,
        lambda text: print(text, file=sys.stderr),
        asked.retention(manifest),
    )
    if output is AuditOutput.JSON:
        print(audits.as_json(result))
    else:
        table = Table(*audits.COLUMNS)
        for partition in result.partitions:
            table.add_row(*(f"{getattr(partition, name):,}" for name in audits.COLUMNS.values()))
        console().print(table)
        for note in result.notes:
            print(note)
        total = sum(partition.rows + partition.dead_letters for partition in result.partitions)
        if result.exact:
            print(f"{place}: {total:,} records, {exact_text(result.losses)}{waiting_text(result.waiting, manifest)}")
        else:
            first = next(partition for partition in result.partitions if not partition.exact)
            print(f"{place}: NOT exactly once; for example partition {first.partition}, offset {first.example}")
    if not result.exact:
        raise typer.Exit(ExitCode.CORRUPT)


@app.command("recovery-topics")
def recovery_topics(
    profile: Annotated[str, typer.Argument(help="The diskless profile.")],
    context: Context = None,
    config: Configuration = None,
    release_namespace: Release = RELEASE,
    without_tables: Annotated[
        bool,
        typer.Option(
            "--without-tables", help="Do not read the tables. New records may then get offsets that have landed."
        ),
    ] = False,
    from_tables: Annotated[
        bool,
        typer.Option(
            "--from-tables", help="For a bucket without records: add the data files from which the logs are made."
        ),
    ] = False,
) -> None:
    """Print the topics of a diskless profile, for a recovery without a backup of the coordinator.

    The output is the file for firn-broker fsck --recover --topics. It has the name, the id, the partitions and the configs of each
    topic, and the offsets that have landed in its tables. New records get no such offset. With --without-tables, the offsets are left out.
    Topics of the profile that no IcebergTopic has are not in the output.

    With --from-tables, the ids come from the tables, and IcebergTopics need no status. The output also has the data files of tables with
    raw values. The recovery makes the logs from them.

    The standard error shows what the output lacks. The exit code is 4 then.
    """
    if without_tables and from_tables:
        raise InvalidSpecError("--without-tables and --from-tables exclude each other; leave one of them out")
    path = _path(config)
    if path is None:
        option = [*["--without-tables"] * without_tables, *["--from-tables"] * from_tables]
        _run_in_pod(_Asked(context), release_namespace, "recovery-topics", *option, "--", profile)
    from firn_operator.cli import recovery_topics as listing
    from firn_operator.cli.lake import Lake
    from firn_operator.cli.resources import connection

    _bound_memory(path, "firn recovery-topics", listing.TOO_MUCH_MEMORY)
    loaded = configuration.load(path, private=True)
    with connection.Connection(connection.log_in(context)) as api:
        manifests = [
            manifest
            for namespace in loaded.watch_namespaces or (None,)
            for manifest in api.list(connection.topics(namespace))
        ]
    reported: list[str] = []
    asked = loaded, profile, manifests, _Asked(context).retention, reported.append
    if from_tables:
        found = listing.from_tables(*asked, Lake(loaded).look_up)
    else:
        found = listing.known_topics(*asked, None if without_tables else Lake(loaded).look_up)
    print(json.dumps(found, indent=2))
    if reported:
        print(*reported, sep="\n", file=sys.stderr)
        raise typer.Exit(ExitCode.CORRUPT)


@app.command()
def check(config: Configuration = None, context: Context = None, release_namespace: Release = RELEASE) -> None:
    """Check a configuration file and print its invalid keys."""
    path = _path(config)
    if path is None:
        _run_in_pod(_Asked(context), release_namespace, "check")
    loaded = configuration.load(path)
    print(f"{path}: {len(loaded.profiles)} profiles, {len(loaded.catalogs)} catalogs, {len(loaded.groups)} groups")


@app.command()
def version() -> None:
    """Print the version."""
    print(firn.__version__)


@app.command(
    "quickstart-secrets",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def quickstart_secrets(context: typer.Context) -> None:
    """Create the passwords of the quick start's stores, if they do not exist. The chart runs this command."""
    from firn_operator.cli import quickstart_secrets as generation

    raise typer.Exit(generation.main(context.args))


def _print_result(result: Any, output: Output) -> None:
    """Print an Arrow table."""
    match output:
        case Output.JSON:
            print(json.dumps(result.to_pylist(), default=_plain))
        case Output.CSV:
            from pyarrow import csv

            csv.write_csv(_flat(result), sys.stdout.buffer)
        case Output.TABLE:
            table = Table(*result.column_names)
            for row in result.to_pylist():
                table.add_row(*("" if value is None else readable(value) for value in row.values()))
            console().print(table)
            print(f"{result.num_rows} row{'s' if result.num_rows != 1 else ''}")


def _flat(result: Any) -> Any:
    """Return an Arrow table whose structs, lists and maps are JSON. CSV has no such values."""
    import pyarrow as pa

    for index, field in enumerate(result.schema):
        if pa.types.is_nested(field.type):
            texts = [None if value is None else readable(value) for value in result[index].to_pylist()]
            result = result.set_column(index, field.name, pa.array(texts, pa.string()))
    return result


def exact_text(losses: Losses) -> str:
    """Return the result of an audit without errors: about every offset, or about landed records if others were lost."""
    offsets, _ = losses.since(0)
    if not offsets:
        return "every offset exactly once"
    return f"every landed record exactly once; {offsets:,} offsets are lost"


def waiting_text(offsets: int, topic: dict[str, Any]) -> str:
    """Return the end of the sentence about an audit: how many offsets wait, and the halt before which they wait."""
    if not offsets:
        return ""
    halted = ((topic.get("status") or {}).get("ingestion") or {}).get("haltedAt")
    place = f" behind the halt at partition {halted['partition']}, offset {halted['offset']}" if halted else ""
    return f"; {offsets:,} more offsets wait to land{place}"


def _path(config: str | None) -> str | None:
    """Return the path of the operator's configuration: the given one, or that of the pod. None on a machine without it."""
    if config is not None:
        return config
    return names.CONFIG_PATH if Path(names.CONFIG_PATH).exists() else None


def _bound_memory(path: str, command: str, message: str) -> None:
    """In the operator's container, end this process with ``message`` before it takes the memory of the operator.

    Raises UnavailableError if another such command runs there.
    """
    from firn_operator.cli import memory

    if path == names.CONFIG_PATH:
        memory.stay_alone(command)
        memory.bound(memory.most(), message)


def _run_in_pod(asked: "_Asked", release: str, *arguments: str) -> NoReturn:
    """Run this command in a pod of Firn, and exit with its code. Options stand before ``--``."""
    from firn_operator.cli import pod
    from firn_operator.cli.resources.connection import Connection, log_in

    with Connection(log_in(asked.context)) as api:
        code = pod.run(api, release, arguments, context=asked.context)
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Context and namespace that a person chose for a command."""

    context: str | None
    namespace: str | None = None

    def place(self, topic: str) -> str:
        """Return NAMESPACE/NAME of a topic. Raises InvalidSpecError."""
        from firn_operator.cli.resources.connection import log_in

        if self.namespace and topic.count("/") == 1:
            namespace, name = log_in(self.context, self.namespace).place(topic)
        else:
            namespace, separator, name = topic.partition("/")
            if not separator:
                namespace, name = self.namespace or log_in(self.context).namespace, topic
        if not namespace or not name or "/" in name:
            raise InvalidSpecError(f"{topic!r} is not an IcebergTopic: write NAME or NAMESPACE/NAME")
        return f"{namespace}/{name}"

    def topic(self, place: str) -> dict[str, Any]:
        """Read the topic NAMESPACE/NAME. Raises InvalidSpecError if it does not exist."""
        namespace, _, name = place.partition("/")
        manifest = self._read("icebergtopics", namespace, name)
        if manifest is None:
            raise InvalidSpecError(f"IcebergTopic {place} does not exist; kubectl get icebergtopics -A lists them")
        return manifest

    def retention(self, topic: dict[str, Any]) -> dict[str, Any] | None:
        """Read the RetentionPolicy that governs a topic according to its status."""
        maintenance = (topic.get("status") or {}).get("maintenance") or {}
        name = (maintenance.get("retention") or {}).get("policy")
        return self._read("retentionpolicies", topic["metadata"]["namespace"], name) if name else None

    def _read(self, plural: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Read a resource from the cluster; None if it does not exist. Raises the errors of `Connection.read`."""
        from firn_operator.cli.resources.connection import Collection, Connection, log_in

        with Connection(log_in(self.context)) as api:
            return api.read(Collection(plural, namespace), name)


def console() -> Console:
    """Return a console on the standard output."""
    # Programs and logs read piped output, so lines are not wrapped at 80 columns.
    has_terminal = sys.stdout.isatty() or (names.CLI_ENDS_WITH_INPUT in os.environ and "COLUMNS" in os.environ)
    return Console(width=None if has_terminal else 200)


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


def readable(value: object) -> str:
    """Return a value for people to read."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=readable, ensure_ascii=False)
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _end_with_input() -> None:
    """End this process at the end of its standard input: `pod.run` or its kubectl has ended."""
    while os.read(0, 4096):
        pass
    # Such commands only read, so they can end anywhere. A thread cannot interrupt a query of DuckDB.
    os._exit(128 + signal.SIGINT)


def main() -> int:
    """Run ``firn`` and return the exit code."""
    if names.CLI_ENDS_WITH_INPUT in os.environ:
        threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    try:
        app()
    except FirnError as error:
        print(f"firn: {error}", file=sys.stderr)
        return ExitCode.TEMPORARY if isinstance(error, UnavailableError) else ExitCode.CONFIGURATION
    except ModuleNotFoundError as error:
        print(
            f"firn: this installation has no module {error.name}, with which firn reads catalogs and brokers: it has the extra cli only; run this"
            " command in the operator's pod, or install the extra operator",
            file=sys.stderr,
        )
        return ExitCode.CONFIGURATION
    return ExitCode.DONE
