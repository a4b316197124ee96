"""report."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli.app import REPORTS, app, console, print_results

if TYPE_CHECKING:
    from bench.outcome import Result
    from bench.probe import Probe

Format = Literal["md", "html"]


@app.command()
def report(
    folder: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run's folder; else the newest.")] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Without it: tables on a terminal, markdown elsewhere.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="A file; markdown gets its plots/ beside it. html: else report.html of the run.")
    ] = None,
) -> None:
    """Show a run: tables on a terminal, markdown for a pull request, or a page with charts."""
    from bench.report import html, markdown, sections
    from bench.spool import write_text
    from bench.store import Store, newest

    store = Store(folder or newest(REPORTS))
    results, probes = store.results(), store.probes()
    shown_on = console()
    _append_to_step_summary(results, probes)
    match format_ or ("md" if output or not shown_on.is_terminal else None):
        case None:
            print_results(results, probes, shown_on)
        case "md" if output:
            _write_with_plots(output, results, probes)
        case "md":
            typer.echo(markdown.render(results, probes), nl=False)
        case "html":
            output = output or store.root / "report.html"
            write_text(output, html.render(sections.report(results, probes)))
    if output is not None:
        typer.echo(f"report: {output}")


def _write_with_plots(output: Path, results: "list[Result]", probes: "list[Probe]") -> None:
    from bench.report import markdown, plots
    from bench.report.charts import charts
    from bench.report.summary import summarize
    from bench.spool import write_text

    drawn = charts(summarize(results))
    pictures = [f"\n![{markdown.escape(chart.title)}](plots/{chart.name}.svg)\n" for chart in drawn]
    (output.parent / "plots").mkdir(exist_ok=True)
    for chart in drawn:
        write_text(output.parent / "plots" / f"{chart.name}.svg", plots.svg(chart))
    write_text(output, markdown.render(results, probes) + "".join(pictures))


def _append_to_step_summary(results: "list[Result]", probes: "list[Probe]") -> None:
    """Where GitHub asks for it, the report appears on the page of the run."""
    from bench.report import markdown

    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(name, "a", encoding="utf-8") as summary:
            summary.write(markdown.render(results, probes))
