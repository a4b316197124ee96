"""The command line: parse, one library call, print, exit code. The only room that prints.

`bench/cli/app.py` lists the commands. Each is imported when it is called, so that `bench --help` is instant.
"""


def main() -> None:
    """Run the command that `sys.argv` names.

    The imports are inside this function, so that Ctrl-C ends bench without a traceback even while it starts.
    """
    try:
        from bench.cli.app import app

        app(prog_name="bench")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
