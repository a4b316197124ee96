"""Every command of README.md and the guides is run, and its output compared with the one that the document shows."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import yaml
from documents import Command, Document, File, differences
from typer._click.core import Command as Click
from typer.testing import CliRunner

from bench.cli.app import COMMANDS, app, load
from bench.cli.named_texts import purpose

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
GUIDES = sorted((ROOT / "bench" / "guides").glob("*.md"))
PATHS = [README, *GUIDES]
NEEDED = ("matrices", "reports", "Makefile", "pyproject.toml", "constraints.txt")
COMMAND_LIMIT_S = 1500
AFTER_README = "<!-- after: README.md -->"
"""In a guide: its commands need the files that those of README.md have made."""

GROUPED = [
    pytest.param(path, id=path.stem, marks=pytest.mark.xdist_group("readme" if AFTER_README in text else path.stem))
    for path, text in ((path, path.read_text()) for path in GUIDES)
]
"""One worker of pytest-xdist runs the commands of README.md, and then of the guides that need their files."""


def named(path: Path) -> str:
    return path.stem


def launched_once(file: File) -> str:
    """What the file says. A matrix launches nothing again: only launches.md shows that, with one of its own."""
    content = yaml.safe_load(file.content) if file.language == "yaml" else None
    if isinstance(content, dict) and "matrix" in content and "launches" not in content.get("measure", {}):
        return yaml.safe_dump({**content, "measure": {**content.get("measure", {}), "launches": 1}}, sort_keys=False)
    return file.content


def play(document: Document, folder: Path, *, long: bool) -> list[str]:
    """Write the files and run the commands of a document; what is wrong, a text each."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",  # two would spin on cores that other tests use
    }
    wrong = []
    for step in document.steps():
        place = f"{document.path.name}:{step.line}"
        if isinstance(step, File):
            (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / step.name).write_text(launched_once(step))
        elif step.not_run is not None:
            print(f"{place}: not run: {step.not_run}: {step.text}")
        elif long or not step.long:
            wrong += [f"{place}: $ {step.text}\n{problem}" for problem in _run(step, folder, environment)]
    return wrong


def _run(command: Command, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    if done.returncode != command.exit_code:
        yield f"ended with {done.returncode}, not {command.exit_code}:\n{done.stdout}"
    elif found := differences(command.output, done.stdout):
        yield f"{found}\nIt printed:\n{done.stdout}"


def copy(folder: Path) -> Path:
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy2(source, folder / name)
    return folder


@pytest.fixture(scope="module")
def after_readme(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A copy of the repository in which README.md's commands were run, and what went wrong."""
    folder = copy(tmp_path_factory.mktemp("readme"))
    return folder, play(Document.read(README), folder, long=False)


@pytest.mark.docs
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("readme")
def test_the_readme_shows_what_its_commands_print(after_readme: tuple[Path, list[str]]) -> None:
    assert not after_readme[1], "\n".join(after_readme[1])


@pytest.mark.docs
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", GROUPED)
def test_a_guide_shows_what_its_commands_print(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    document = Document.read(path)
    folder = request.getfixturevalue("after_readme")[0] if AFTER_README in document.text else copy(tmp_path)
    wrong = play(document, folder, long=False)
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("path", [path for path in PATHS if "<!-- long -->" in path.read_text()], ids=named)
def test_a_document_with_its_long_commands(path: Path, tmp_path: Path) -> None:
    """`make` finds an environment that is up to date, so it installs none."""
    folder = copy(tmp_path)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    for done in ("installed", "extensions"):
        (folder / ".venv" / done).touch()
    document = Document.read(path)
    wrong = play(Document.read(README), folder, long=False) if AFTER_README in document.text else []
    wrong += play(document, folder, long=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_every_matrix_loads(path: Path, tmp_path: Path) -> None:
    document, folder = Document.read(path), copy(tmp_path)
    assert document.unnamed("yaml") == [], "a block of YAML without a file name cannot be tried"
    files = [step for step in document.steps() if isinstance(step, File)]
    commands = [step for step in document.steps() if isinstance(step, Command) and not (step.long or step.not_run)]
    for file in files:
        (folder / file.name).write_text(file.content)
    for file in files:
        measured = any(command.text.startswith(f"bench run {file.name}") for command in commands)  # by another test
        if file.language == "yaml" and not measured and "matrix" in yaml.safe_load(file.content):
            where = "--launcher slurm" * ("nodes:" in file.content)
            command = Command(text=f"bench run {shlex.quote(file.name)} --dry-run {where}", output=(), line=file.line)
            environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            assert list(_run(command, folder, environment)) == []


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_every_link_resolves(path: Path) -> None:
    assert Document.read(path).broken_links() == []


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_every_command_in_a_sentence_exists(path: Path) -> None:
    unknown = [code for code in Document.read(path).inline() if unknown_word(code)]
    assert unknown == []


def unknown_word(code: str) -> str | None:
    """The first word of ``bench COMMAND --option`` that the command line does not know."""
    words = code.split()
    if words[:1] != ["bench"]:
        return None
    command: Click = typer.main.get_command(app)
    for depth, word in enumerate(words[1:]):
        inner = COMMANDS if depth == 0 else getattr(command, "commands", {})
        options = {name for parameter in command.params for name in parameter.opts}
        if word in inner:
            command = load(word) if depth == 0 else inner[word]
        elif (inner and not word.startswith("-") and not word.isupper()) or (
            word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}
        ):
            return word
    return None


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_a_document_is_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 150 if path == README else lines < 120


@pytest.mark.parametrize("path", GUIDES, ids=named)
def test_a_guide_says_what_it_is_for_in_one_line(path: Path) -> None:
    title, _, line, after = path.read_text().splitlines()[:4]
    assert title.startswith("# ")
    assert purpose(path.read_text()) == line
    assert after == ""


def test_a_word_that_is_not_a_guide_names_the_guides_that_explain_it() -> None:
    done = CliRunner().invoke(app, ["guide", "straggler"])
    assert done.exit_code == 2
    assert "  'straggler' is mentioned in: measuring" in done.stderr
    oom = CliRunner().invoke(app, ["guide", "oom"]).stderr  # which is in headroom, too
    assert "troubleshooting" in oom.splitlines()[-1]
    assert "search" not in oom.splitlines()[-1]
    assert "mentioned" not in CliRunner().invoke(app, ["guide", "to"]).stderr


def test_every_guide_that_is_mentioned_exists() -> None:
    sources = [*PATHS, *(ROOT / "bench").rglob("*.py"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    mentioned = {name for source in sources for name in re.findall(r"`bench guide ([a-z-]+)", source.read_text())}
    assert mentioned, "no document mentions a guide"
    assert mentioned <= {path.stem for path in GUIDES}


def test_every_guide_is_named_by_the_readme() -> None:
    assert [path.stem for path in GUIDES if f"bench/guides/{path.name}" not in README.read_text()] == []


# What these tests find.


def document(tmp_path: Path, text: str) -> Document:
    path = tmp_path / "doc.md"
    path.write_text(text)
    return Document.read(path)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        (["1 cell"], "2 cells"),
        (["one", "two"], "two\none"),
        (["one"], "zero\none"),
        (["one"], "one\ntwo"),
        (["…", "one"], "one\ntwo"),
        (["one", "…", "three"], "one\ntwo"),
        (["one … three"], "one two"),
        (["…", "b", "a", "…"], "a\nb"),
        (["batch 2: ok, 3 samples/s"], "batch 2: oom, 3 samples/s"),
        (["verdict SAME"], "verdict SLOWER"),
    ],
)
def test_a_wrong_excerpt_is_found(expected: list[str], printed: str) -> None:
    assert differences(tuple(expected), printed) is not None


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        (["4 cells"], "12 cells"),
        (["…"], ""),
        (["one", "…"], "one"),
        (["…", "three"], "one\ntwo\nthree"),
        (["one", "…", "three"], "one\ntwo\nthree"),
        (["one … three"], "one two three"),
        (["attempts/ddp-66a62f51f7/"], "attempts/ddp-c1a476aca8/"),
        (["| a  |  1.5 |", "| -- | ---: |"], "| a | 12.25 |\n| --- | ----: |"),
        (["ok, 162 MiB, 9 s"], "ok, 1.20 GiB, 2 min"),
    ],
)
def test_a_right_excerpt_is_taken(expected: list[str], printed: str) -> None:
    assert differences(tuple(expected), printed) is None


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    text = "# Title\n[a](doc.md) [b](#title) [c](nowhere.md) [d](#nothing) [e](https://example.org/x)\n"
    assert document(tmp_path, text).broken_links() == ["nowhere.md", "#nothing"]


def test_a_command_that_fails_or_prints_something_else_is_found(tmp_path: Path) -> None:
    commands = "```console\n$ echo a \\\n    b\na b\n$ false\n$ echo yes\nno\n```\n"
    text = f"{commands}<!-- exit: 3 -->\n```console\n$ exit 3\n```\n"
    wrong = play(document(tmp_path, text), tmp_path, long=False)
    assert [one.splitlines()[0] for one in wrong] == ["doc.md:5: $ false", "doc.md:6: $ echo yes"]


def test_long_commands_and_those_that_cannot_run_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "<!-- long -->\n```console\n$ false\n```\n<!-- not run: no GPU here -->\n```console\n$ false\n```\n"
    assert play(document(tmp_path, text), tmp_path, long=False) == []
    assert "not run: no GPU here" in capsys.readouterr().out
    assert len(play(document(tmp_path, text), tmp_path, long=True)) == 1


def test_files_are_written_and_blocks_without_a_name_are_found(tmp_path: Path) -> None:
    blocks = "```yaml\n# a.yaml\naxes: {}\n```\n```yaml\naxes: {}\n```\n"
    made = document(tmp_path, f"{blocks}```console\n$ cat a.yaml\n# a.yaml\naxes: {{}}\n```\n")
    assert made.unnamed("yaml") == [6]
    assert play(made, tmp_path, long=False) == []


@pytest.mark.parametrize("code", ["bench rnu", "bench run --nothing", "bench audit nothing"])
def test_an_unknown_command_in_a_sentence_is_found(code: str) -> None:
    assert unknown_word(code)


@pytest.mark.parametrize(
    "code", ["bench", "bench run MATRIX --dry-run", "bench audit params --zero-grad", "bench guide NAME", "make check"]
)
def test_a_known_command_in_a_sentence_is_taken(code: str) -> None:
    assert unknown_word(code) is None
