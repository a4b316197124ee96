"""bench never writes or prints the value of a token, key or password from the environment."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from commands import bench as in_this_process
from harness import Bench

from bench.records.outcome import Failed, Hang, Result
from bench.store.run_folder import Store
from bench.store.secrets import mask

SECRETS = {
    name: f"planted-{name.lower()}"
    for name in (
        *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "WANDB_API_KEY", "GITHUB_TOKEN", "OPENAI_APIKEY"),
        *("DB_PASSWORD", "PGPASSWORD", "SOME_PASSPHRASE", "REDIS_PASS", "MINE_CREDENTIALS", "http_auth"),
    )
}
MISPLACED = {"MKL_NUM_THREADS": "planted-in-threads"}
if torch.version.cuda is None:  # built for CUDA, torch aborts when it is imported
    MISPLACED["PYTORCH_CUDA_ALLOC_CONF"] = "planted-in-allocator"
"""Variables that bench records, with a secret in them by mistake."""


def holders(folder: Path) -> list[str]:
    """Files that contain a planted value."""
    return [str(file) for file in folder.rglob("*") if file.is_file() and b"planted" in file.read_bytes()]


def test_nothing_of_a_run_holds_a_planted_value(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **MISPLACED, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    matrix = bench.matrix(matrix={"backend": ["ddp", "fsdp"], "batch": 2})
    run = str(bench.folder / "run")
    own = ("--rerun", "all", "--isolation", "launch", "--select", "backend=ddp")
    printed = [
        bench("run", matrix, "--dry-run"),
        bench("run", matrix, "--out", run),
        bench("run", matrix, "--out", run, *own),
    ]
    reading = [
        ("doctor",),
        ("show", "backend=fsdp", run),
        ("compare", run, run),
        *(("report", run, "--format", kind) for kind in ("md", "csv", "json")),
        ("report", run, "--format", "html", "--output", bench.folder / "page.html"),
    ]
    for words in reading:
        done = in_this_process(*words)
        assert done.exit_code == 0, done.output
        printed.append(done.output)
    assert holders(bench.folder) == []
    assert not [text for text in printed if "planted" in text]
    for result in bench.results():
        assert result.outcome.kind == "ok"
        assert result.machine.threads == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "unreadable"}


@pytest.fixture(scope="module")
def leaked(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A run of a workload that writes its secret to the log and to its error."""
    bench = Bench(tmp_path_factory.mktemp("leaked"))
    matrix = bench.matrix(
        workload={"name": "leaks:Toy"},
        matrix={"backend": "ddp", "fault": ["raise", "sleep"], "batch": 2},
        launch={"attempt_timeout_s": 8},
    )
    printed = bench("run", matrix, "--out", str(bench.folder / "run"), expect=1, **SECRETS)
    assert "planted" not in printed
    bench.assert_gone()
    return bench


def of(leaked: Bench, fault: str) -> Result:
    [result] = [result for result in leaked.results() if result.axes["fault"] == fault]
    return result


def test_an_error_that_holds_one_is_told_without_it(leaked: Bench) -> None:
    result = of(leaked, "raise")
    assert isinstance(result.outcome, Failed)
    assert result.outcome.reason.startswith("RuntimeError: 401 Unauthorized: [HF_TOKEN] (in ")
    assert holders(Store(leaked.folder / "run").folder(result.attempt)) == []
    assert "planted" not in leaked("show", "fault=raise", str(leaked.folder / "run"), **SECRETS)


def test_what_a_workload_logs_is_its_own_but_no_record_repeats_it(leaked: Bench) -> None:
    outcome = of(leaked, "sleep").outcome
    assert isinstance(outcome, Hang)
    assert outcome.reason.startswith("no result within 8 s")
    assert all("signed in with [HF_TOKEN]" in stuck.log_tail for stuck in outcome.stuck)
    logs = [Path(file) for file in holders(leaked.folder)]
    assert {file.name for file in logs} == {"rank0.log", "rank1.log"}


def test_a_workload_that_cannot_be_loaded_is_told_without_it(bench: Bench) -> None:
    (bench.folder / "broken.py").write_text("import os\nraise RuntimeError(os.environ['HF_TOKEN'])\n")
    matrix = bench.matrix(workload={"name": "broken:Toy"}, matrix={"backend": "ddp", "batch": 2})
    printed = bench("run", matrix, "--dry-run", cwd=bench.folder, expect=2, **SECRETS)
    assert "RuntimeError: [HF_TOKEN]" in printed
    assert "planted" not in printed


@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("HF_TOKEN", "hf_0123456789", True),
        ("hf_token", "hf_0123456789", True),
        ("MY_KEYS", "one two\nthree", True),
        ("A_PASSWORD_FILE", "it's here", True),
        ("AWS_SECRET_ACCESS_KEY", 's3cr&t/"tok\\en+1234', True),
        ("SSH_PRIVATE_KEY", "-----BEGIN\nabc\n", True),
        ("TOKENIZERS_PARALLELISM", "parallel", False),
        ("PWD", "/home/someone", False),
        ("OLDPWD", "/home/someone", False),
        ("KEYBOARD", "qwertz", False),
        ("A_KEY", "1", False),
        ("A_TOKEN", "", False),
    ],
)
def test_values_are_known_by_the_names_of_their_variables(name: str, value: str, masked: bool) -> None:
    environment = {"PATH": "/usr/bin", name: value}
    for written in (value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value), quote(value, safe="")):
        assert (
            mask(f"/usr/bin said {written}1.", environment) == f"/usr/bin said {f'[{name}]' if masked else written}1."
        )


def test_a_secret_of_any_bytes_is_masked() -> None:
    value = b"\xff\xfe\xff\xfe\xff\xfe".decode(errors="surrogateescape")
    assert mask(f"said {value} and %FF%FE%FF%FE%FF%FE", {"MY_TOKEN": value}) == "said [MY_TOKEN] and [MY_TOKEN]"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgres://me:hunter2@host:5432/db failed", "postgres://me:[password]@host:5432/db failed"),
        ("get 'https://:ghp_abc@git.example/x.git'", "get 'https://:[password]@git.example/x.git'"),
        ("_https://me:hunter2@host/x", "_https://me:[password]@host/x"),
        ("https://user:p@ss-w0rd@host/x", "https://user:[password]@host/x"),
        ("https://ghp_abcdefghijklmnop@github.example/x", "https://[password]@github.example/x"),
        ("ssh://git@github.example/x", "ssh://git@github.example/x"),
        ("GET https://h/x?user=me&access_token=hunter2&n=1", "GET https://h/x?user=me&access_token=[password]&n=1"),
        ("https://h/x?X-Amz-Signature=0a1b", "https://h/x?X-Amz-Signature=[password]"),
        ("https://h/x?n_tokens=4", "https://h/x?n_tokens=4"),
        ("tcp://127.0.0.1:29500 me@host", "tcp://127.0.0.1:29500 me@host"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ],
)
def test_a_password_inside_a_url_is_masked(text: str, masked: str) -> None:
    assert mask(text, {}) == masked


def test_the_longer_of_two_values_is_looked_for_first() -> None:
    assert mask("secret-and-more", {"A_KEY": "secret", "B_KEY": "secret-and-more"}) == "[B_KEY]"
