"""The command: gather what the checks look at, and print what they find."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.check.finding import Finding, Level
from headwater.cli.check.source import check_source
from headwater.cli.check.spark import check_spark
from headwater.cli.config import File, Json, Url
from headwater.cli.output import print_json, print_table
from headwater.cli.pipeline import DEFAULT_FILE, has_spark
from headwater.cli.session import session
from headwater.errors import SettingsError
from headwater.postgres.connect import describe
from headwater.postgres.replication.slot import check_slot_name

_STYLES = {Level.OK: "", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def check(
    context: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="Tables to capture: orders, sales.orders, 'public.*', '\"Order Items\"'."),
    ] = None,
    slot: Annotated[str, typer.Option(metavar="NAME", show_default=False, help="The slot that capture will use.")] = "",
    publication: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="The publication that capture will use.")
    ] = "",
    url: Url = "",
    file: File = None,
    json: Json = False,
) -> None:
    """Look for whatever would stop the capture of a database, or a pipeline, and say what to do about it.

    Nothing is changed. Looks at the server's settings, at the rights of the user, at the way there (a pooler does not carry
    replication), and, for the tables that are named, at keys, replica identity, rights and column types.

    With a pipeline file, also at its keys, its transform, every sink, the database for Headwater's own tables, and at Spark
    and its Java. That of the current directory is taken, if there is one, unless tables or other options are given.

    The exit code is 1 if there is an error. Warnings are worth reading, but do not stop capture.

    Examples:

        headwater check
        headwater check --file pipelines/shop.toml
        headwater check --url postgresql://capture@db.example.com/shop
        headwater check 'public.*' sales.orders --slot headwater_shop --publication headwater_shop
        HEADWATER_URL=postgresql:///shop headwater check orders --json
    """
    chosen = _choose_file(context, file)
    if chosen is not None:
        subject, findings = _check_file(chosen)
    else:
        if slot:
            check_slot_name(slot)
        with session(url) as connection:
            subject, findings = describe(url), list(check_source(connection, url, tables or [], slot, publication))
    _print(subject, findings, as_json=json)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(1)


def _choose_file(context: typer.Context, file: Path | None) -> Path | None:
    """The pipeline file to check, or None if the arguments say what to check. A URL in the environment says nothing."""
    given = [option for option in ("tables", "slot", "publication", "url") if _is_given(context, option)]
    if file is None:
        return DEFAULT_FILE if not given and DEFAULT_FILE.exists() else None
    if given:
        raise SettingsError(f"{', '.join(given)} and --file exclude each other; a pipeline file names all that it needs")
    return file


def _is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _check_file(file: Path) -> tuple[str, list[Finding]]:
    if not has_spark():
        # Without it the file cannot even be read.
        return str(file), list(check_spark())
    from headwater.cli.check.pipeline import check_pipeline

    return str(file), list(check_pipeline(file))


def _print(subject: str, findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"server": subject, "findings": [dataclasses.asdict(finding) for finding in findings], **_counts(findings)}
        )
        return
    if sys.stdout.isatty():
        rows = [(finding.level, finding.subject, finding.found, finding.remedy) for finding in findings]
        print_table(("", "looked at", "found", "what to do"), rows, [_STYLES[finding.level] for finding in findings])
    else:
        for finding in findings:
            typer.echo(_as_text(finding))
    counts = ", ".join(f"{kind}: {count}" for kind, count in _counts(findings).items())
    typer.echo(f"\n{subject} has {counts}")


def _as_text(finding: Finding) -> str:
    """For pipes and files, where a line may be as long as it likes, and should hold all that belongs together."""
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    return f"{finding.level:8} {finding.subject}: {finding.found}{remedy}"


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    levels = [finding.level for finding in findings]
    return {"errors": levels.count(Level.ERROR), "warnings": levels.count(Level.WARNING)}
