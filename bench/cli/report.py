"""`bench report`: runs as tables, markdown, a page or data."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from bench.cli import report_files, selection
from bench.cli.app import REPORTS
from bench.cli.printing import console, print_report, print_unreadable
from bench.errors import InputError, near_miss
from bench.records.outcome import Result
from bench.report.controlled import RUN, controlled_of
from bench.report.naming import setting
from bench.report.render import markdown
from bench.report.render.formats import FORMATS, FULL, by_ending
from bench.report.tables.sections import Choices, Report

STEP_SUMMARY_BYTES = 1024 * 1024
"""If a step's summary is larger, GitHub shows nothing of it."""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Without garbage collection, which only takes time: everything that a report reads is needed to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_without_collector()
def report(
    folders: selection.Runs = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="[default: by --output's ending, else tables on a terminal and markdown elsewhere]",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All sections, instead of the short report for a pull request.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file to write. --full also writes plots/ beside it.  [default for html: the run's report.html]",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS",
            help="The axis whose values to compare. The report recommends the best of them.  [default: backend]",
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An axis whose best value the report recommends. Each value of the others gets its own answer."
            " May be repeated.  [default: the choices of the matrix]",
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="AXIS=VALUE", help="The value to compare the others with: backend=ddp.")
    ] = None,
    allow_unlike: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS", help="Compare results that differ in these fields, and say so: attention,grad_ckpt."
        ),
    ] = None,
    claims: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file of expected results.  [default: the claims of the run]"),
    ] = None,
) -> None:
    """Show runs as tables, markdown, a web page or data.

    Prints a short report: tables on a terminal and markdown elsewhere, for a pull request. --full prints all of it.
    html is one page with charts; csv, json and parquet hold a row for each result; svg, png and pdf hold the charts.
    """
    from bench.store.newest_run import newest

    if format_ is not None and format_ not in FORMATS:
        raise InputError(
            f"{format_!r} is not a format", field="--format", allowed=[*FORMATS], fix=near_miss(format_, FORMATS)
        )
    if not folders:
        folders = [newest(REPORTS)]
        typer.echo(f"the newest run: {folders[0]}", err=True)
    name = format_ or _by_ending(output)
    content = _collect(folders, compare, choice or (), reference, allow_unlike, claims)
    if output is None and name == "html":
        output = folders[0] / "report.html"
    full = full and name in (None, "md")
    if output is not None and len(folders) == 1:
        content = replace(content, folder=Path(os.path.relpath(folders[0], output.parent)))
    whole = [output] if output and (full or name == "html") else [folder / "report-full.md" for folder in folders]
    _append_to_step_summary(content, whole)
    form, terminal = FULL if full else FORMATS[name or "md"], console()
    try:
        if output is not None:
            report_files.write_report(output, content, form)
        elif form.binary:
            raise InputError(
                f"{form.name} is not text", field="--output", fix=f"name a file: --output rows.{form.name}"
            )
        elif name is None and terminal.is_terminal:
            print_report(content, terminal, full=full)
        else:
            typer.echo(form.render(content, None), nl=False)
    except OSError as error:  # perhaps of a file beside it, such as a chart
        if output is None or isinstance(error, BrokenPipeError):
            raise
        fix = "choose another file with --output"
        raise InputError(f"cannot write there: {error.strerror}", where=str(output), fix=fix) from error
    if output is not None and not report_files.is_stream(output):
        typer.echo(f"report: {output}")


def _by_ending(output: Path | None) -> str | None:
    """The format's name. A file without an ending has none, and becomes markdown."""
    if output is None or not output.suffix:
        return None
    form = by_ending(output.suffix)
    if form is None:
        raise InputError(
            f"{output.suffix!r} is not the ending of a format",
            where=f"--output {output}",
            allowed=[ending for form in FORMATS.values() for ending in form.endings],
            fix="or name the format with --format",
        )
    return form.name


def _collect(
    folders: Sequence[Path],
    compare: str | None,
    choice: Sequence[str],
    reference: str | None,
    allow_unlike: str | None,
    claims: Path | None,
) -> Report:
    """Everything that the report is made of, from the files of the runs and the options."""
    from bench.cli.collect import collect, stores_of
    from bench.matrix.claims_file import read

    stores = stores_of(folders)
    found = collect(stores, claims=read(claims) if claims else None)
    print_unreadable(stores)
    if choice and found.results:
        _check(found.results, "--choice", choice)
    free = (frozenset(choice) or found.choices.free) | ({compare} if compare else set())
    axis, value, allowed = _choices(found.results, compare, reference, allow_unlike)
    return replace(found, choices=replace(found.choices, free=free, axis=axis, reference=value, allowed=allowed))


def _choices(
    results: Sequence[Result], compare: str | None, reference: str | None, allow_unlike: str | None
) -> tuple[str, JsonValue, frozenset[str]]:
    """The axis, its reference and the allowed fields: options, checked against the fields and values of the results."""
    axis, value = compare or Choices.axis, None
    if reference is not None:
        axis, value = _axis_and_value(reference)
        if compare not in (None, axis):
            problem = f"{reference!r} is a value of {axis}, but --compare {compare} compares values of {compare}"
            fix = f"use --compare {axis}, or a value of {compare} as reference"
            raise InputError(problem, field="--reference", fix=fix)
    allowed = frozenset(name.strip() for name in allow_unlike.split(",")) if allow_unlike else frozenset()
    if results:
        _check(results, "--compare" if reference is None else "--reference", [axis])
        _check(results, "--allow-unlike", sorted(allowed))
        if reference is not None:
            value = _known_value(results, axis, value)
    return axis, value, allowed


def _axis_and_value(reference: str) -> tuple[str, JsonValue]:
    """The parts of ``learning_rate=1e-4``; the value is read like one in a matrix."""
    from bench.matrix.yaml_file import parse

    axis, equals, text = reference.partition("=")
    try:
        value = parse(text, lambda _: reference, reference).data
    except InputError:
        equals = ""
    if not equals:
        raise InputError(f"{reference!r} names no value", field="--reference", allowed="axis=value: backend=ddp")
    return axis, value


def _check(results: Sequence[Result], option: str, names: Sequence[str]) -> None:
    """Raises InputError unless each of ``names`` is a field of a comparison."""
    if all(name in controlled_of(results[0]) for name in names):
        return
    known = {name: None for result in results for name in controlled_of(result)}
    for name in names:
        if name not in known:
            raise InputError(
                f"{name!r} is no field of these results",
                field=option,
                allowed=list(known),
                fix=near_miss(name, known),
            )


def _known_value(results: Sequence[Result], name: str, value: JsonValue) -> JsonValue:
    """The value of the results that equals ``value``, in their own form: 1.0 for 1."""
    from bench.matrix.yaml_file import canonical

    values = [controlled[name] for result in results if name in (controlled := controlled_of(result))]
    # A run's name is its folder's, which may read as a number.
    found = [one for one in values if canonical(one) == canonical(value) or (name == RUN and one == str(value))]
    found = found or [one for one in values if setting(name, one) == value]
    if not found:
        words = {setting(name, one): None for one in values}
        raise InputError(
            f"no result has {name} {setting(name, value)}",
            field="--reference",
            allowed=list(words),
            fix=near_miss(setting(name, value), words),
        )
    return found[0]


def _append_to_step_summary(content: Report, whole: list[Path]) -> None:
    """In a GitHub Actions job, the report appears on the job's summary page. Where it is cut, it names the files that
    hold the whole report."""
    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        note = f"The report is cut here: a step summary holds 1 MiB. All of it: {', '.join(map(str, whole))}"
        with open(name, "ab") as summary:
            room = STEP_SUMMARY_BYTES - os.fstat(summary.fileno()).st_size
            summary.write(markdown.cut(markdown.render(content.sections), room, note).encode())
