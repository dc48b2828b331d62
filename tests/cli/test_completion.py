"""``mqfast completion``: the scripts know every command and option, and shells take them.

Room: tests of the command line.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from mqfast.cli.arguments import subcommands
from mqfast.cli.completion import script
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import build_parser, main


def bash(line: str, cwd: str | None = None) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    program = script("bash", build_parser()) + (
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        '_mqfast\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=300, check=True, cwd=cwd)
    assert done.stderr == ""
    return sorted(word for word in done.stdout.split("\n") if word)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_values_and_files(tmp_path: object) -> None:
    store = sorted(subcommands(subcommands(build_parser())["store"]))
    assert set(bash("mqfast ")) >= {"bench", "completion", "doctor", "store"}
    assert set(bash("mqfast store ")) >= set(store)
    assert bash("mqfast store ex") == ["export"]
    assert bash("mqfast store export PATH --form") == ["--format"]
    assert bash("mqfast store export PATH --format p") == ["parquet"]
    assert bash("mqfast store cat PATH --body r") == ["raw"]
    assert bash("mqfast store cat PATH --queue ") == []
    assert bash("mqfast completion f") == ["fish"]
    (tmp_path / "storage").mkdir()  # type: ignore[operator]
    assert bash("mqfast store ls stor", str(tmp_path)) == ["storage"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_takes_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == ExitCode.OK
    text = capsys.readouterr().out
    for name, parser in subcommands(subcommands(build_parser())["store"]).items():
        assert name in text
        for action in parser._actions:
            for option in action.option_strings:
                assert option.lstrip("-") in text
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
