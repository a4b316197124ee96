"""report."""

import errno
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from bench.cli.app import REPORTS, app, console, print_results, tell_left_out
from bench.errors import InputError, near_miss

if TYPE_CHECKING:
    from pydantic import JsonValue

    from bench.records.claim import Claim
    from bench.records.outcome import Result
    from bench.records.verdict import Probe
    from bench.report.tables.sections import Choices, Section
    from bench.store.run_folder import Store

Format = Literal["md", "html", "csv", "json", "parquet"]
STEP_SUMMARY_BYTES = 1024 * 1024
"""GitHub shows nothing of a step's summary that is larger."""


@contextmanager
def _without_collector() -> Iterator[None]:
    """What is read stays to the end: no use looking for garbage in it again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@app.command()
@_without_collector()
def report(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of runs; else the newest.")
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="Else by --output's ending; else tables on a terminal, markdown elsewhere."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A file; markdown gets its plots/ beside it. html: else report.html of the run.")
    ] = None,
    compare: Annotated[str | None, typer.Option(help="The axis whose values are compared; else backend.")] = None,
    reference: Annotated[str | None, typer.Option(help="What the others are set against: backend=ddp.")] = None,
    allow_unlike: Annotated[
        str | None, typer.Option(help="Compare although these fields differ, and say so: attention,grad_ckpt")
    ] = None,
    claims: Annotated[Path | None, typer.Option(help="What was expected beforehand; else claims of the run.")] = None,
) -> None:
    """Show runs: tables on a terminal, markdown for a pull request, a page with charts, or rows for other programs."""
    from bench.report import merge_runs
    from bench.report.render import markdown
    from bench.report.tables import sections
    from bench.store.newest_run import newest
    from bench.store.run_folder import Store

    if not folders:
        folders = [newest(REPORTS)]
        typer.echo(f"the newest run: {folders[0]}", err=True)
    named = {folder.resolve(): folder for folder in folders}
    stores = [Store(folder) for folder in named.values()]
    runs = dict(zip(merge_runs.run_names(list(named.values())), stores, strict=True))
    results, probes = merge_runs.merge(
        {name: store.results() for name, store in runs.items()}, {name: store.probes() for name, store in runs.items()}
    )
    tell_left_out(stores)
    asked = _choices(stores, results, compare, reference, allow_unlike, claims)
    shown_on = console()
    format_ = format_ or _by_ending(output)
    output = output or (stores[0].root / "report.html" if format_ == "html" else None)
    whole = [output] if output and format_ in (None, "md", "html") else [store.root / "report.md" for store in stores]
    _append_to_step_summary(results, probes, asked, whole)
    with _said_of(output):
        match format_ or ("md" if output or not shown_on.is_terminal else None):
            case None:
                print_results(results, probes, shown_on, asked)
            case "md" if output:
                _write_with_plots(output, sections.report(results, probes, asked))
            case "md":
                typer.echo(markdown.render(sections.report(results, probes, asked)), nl=False)
            case "html" if output:
                from bench.report.render import html

                _write(output, html.render(sections.report(results, probes, asked)))
            case "csv" | "json" | "parquet" as kind:
                _write_rows(kind, output, results)
    if output is not None and not _is_a_stream(output):
        typer.echo(f"report: {output}")


def _by_ending(output: Path | None) -> Format | None:
    ending = output.suffix.removeprefix(".").lower() if output is not None else ""
    return next((known for known in get_args(Format) if known == ending), None)


@contextmanager
def _said_of(output: Path | None) -> Iterator[None]:
    """What cannot be written is said of the file that was asked for, whatever is written beside it."""
    try:
        yield
    except OSError as error:
        if output is None:
            raise
        raise InputError(f"cannot write there: {error.strerror}", where=str(output), fix="see --output") from error


def write_reports(store: "Store") -> None:
    """`report.md` with its plots, and `report.html`, in the run's own folder."""
    from bench.report.render import html
    from bench.report.tables import sections

    found = sections.report(store.results(), store.probes(), sections.Choices(claims=_claims([store])))
    _write_with_plots(store.root / "report.md", found)
    _write(store.root / "report.html", html.render(found))


def _claims(stores: "list[Store]") -> "tuple[Claim, ...]":
    """What was expected: said in a run's claims.yaml, else in its matrix."""
    from bench.matrix.claims_file import read

    files = [[store.root / "claims.yaml", store.root / "matrix.yaml"] for store in stores]
    said = [next((file for file in pair if file.exists()), None) for pair in files]
    found = [claim for file in said if file and file.stat().st_size for claim in read(file)]
    return tuple({claim.model_dump_json(): claim for claim in found}.values())  # runs of one matrix expect the same


def _choices(
    stores: "list[Store]",
    results: "list[Result]",
    compare: str | None,
    reference: str | None,
    allow_unlike: str | None,
    claims: Path | None,
) -> "Choices":
    """The options, checked against what the results know."""
    from bench.matrix.claims_file import read
    from bench.report.tables.sections import Choices

    axis, value = compare or Choices.axis, None
    if reference is not None:
        axis, value = _axis_and_value(reference)
        if compare not in (None, axis):
            raise InputError(
                f"{reference!r} is a value of {axis}, and {compare} is compared",
                field="--reference",
                fix=f"--compare {axis}, or a value of {compare}",
            )
    allowed = frozenset(name.strip() for name in allow_unlike.split(",")) if allow_unlike else frozenset()
    if results:
        _check(results, "--compare" if reference is None else "--reference", [axis])
        _check(results, "--allow-unlike", sorted(allowed))
        if reference is not None:
            value = _known_value(results, axis, value)
    said = read(claims) if claims else _claims(stores)
    return Choices(axis=axis, reference=value, allowed=allowed, claims=said)


def _axis_and_value(reference: str) -> "tuple[str, JsonValue]":
    """``learning_rate=1e-4``, read as a matrix is."""
    from bench.matrix.yaml_file import parse

    axis, equals, text = reference.partition("=")
    try:
        value = parse(text, lambda _: reference, reference).data
    except InputError:
        equals = ""
    if not equals:
        raise InputError(f"{reference!r} names no value", field="--reference", allowed="axis=value: backend=ddp")
    return axis, value


def _check(results: "list[Result]", option: str, names: list[str]) -> None:
    """That each of ``names`` is a field of a comparison."""
    from bench.report.contract import contract_of

    if all(name in contract_of(results[0]) for name in names):
        return
    known = {name: None for result in results for name in contract_of(result)}
    for name in names:
        if name not in known:
            raise InputError(
                f"{name!r} is no field of these results",
                field=option,
                allowed=list(known),
                fix=near_miss(name, known),
            )


def _known_value(results: "list[Result]", name: str, value: "JsonValue") -> "JsonValue":
    """The results' own value that is ``value``, as they have it: 1.0 for 1."""
    from bench.matrix.yaml_file import canonical
    from bench.report.contract import RUN, contract_of
    from bench.report.naming import setting

    values = [contract[name] for result in results if name in (contract := contract_of(result))]
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


def _write_rows(kind: Literal["csv", "json", "parquet"], output: Path | None, results: "list[Result]") -> None:
    from bench.report.render import frame
    from bench.report.summary import summarize
    from bench.report.tables.records import records

    rows = records(summarize(results))
    if kind == "parquet":
        if output is None:
            raise InputError("parquet is no text", field="--output", fix="name a file: --output rows.parquet")
        _write(output, frame.parquet(rows))
    elif output is None:
        typer.echo(frame.text(rows, kind), nl=False)
    else:
        _write(output, frame.text(rows, kind))


def _write_with_plots(output: Path, found: "list[Section]") -> None:
    from bench.report.render import markdown, plots
    from bench.report.tables.figure import BarChart, LineChart

    alone = _is_a_stream(output)
    _write(output, markdown.render(found, plots=None if alone else "plots"))
    for section in found:
        if isinstance(section, LineChart | BarChart) and not alone:
            _write(output.parent / "plots" / f"{section.name}.svg", plots.svg(section))


def _is_a_stream(output: Path) -> bool:
    """``/dev/stdout``, or a pipe."""
    return output.exists() and not output.is_file() and not output.is_dir()


def _write(output: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, and its folder where that is missing; a stream as it is."""
    from bench.store.spool import write_bytes

    data = content.encode() if isinstance(content, str) else content
    if _is_a_stream(output):
        with output.open("wb") as stream:
            stream.write(data)
    elif output.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(output))
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(output, data)


def _append_to_step_summary(
    results: "list[Result]", probes: "list[Probe]", asked: "Choices", whole: list[Path]
) -> None:
    """Where GitHub asks for it, the report appears on the page of the run.

    Args:
        whole: the files to read where it has to be cut.
    """
    from bench.report.render import markdown
    from bench.report.tables import sections

    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        text = markdown.render(sections.report(results, probes, asked))
        note = f"The report is cut here: a step summary holds 1 MiB. All of it: {', '.join(map(str, whole))}"
        with open(name, "ab") as summary:
            room = STEP_SUMMARY_BYTES - os.fstat(summary.fileno()).st_size
            summary.write(markdown.cut(text, room, note).encode())
