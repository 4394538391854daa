"""The command: what it prints, and its exit codes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import symcheck
from symcheck.cli import main

EXAMPLE = Path(__file__).parent.parent / "examples" / "mse_linear.py"

FILE = """\
import torch
from symcheck import Case

def square(w):
    return (w * w).sum()

def point():
    return {"w": torch.tensor([1.0, -2.0, 0.5])}

right = Case(square, point, formulas={"w": lambda w: 2 * w})
wrong = Case(square, point, formulas={"w": lambda w: w})
broken = Case(square, lambda: point() | {"w": 1 / 0})
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "cases_of_the_command.py"
    path.write_text(FILE)
    return path


def test_what_is_right_exits_0(file, capsys):
    assert main(["check", f"{file}::right"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"formula +w +OK", printed.out)
    assert "==" not in printed.out
    assert printed.err == ""


def test_what_is_wrong_exits_1(file, capsys):
    assert main(["check", f"{file}::wrong"]) == 1
    assert "The formula for w is wrong: it is not the gradient of square." in capsys.readouterr().out


def test_an_error_in_one_case_exits_2_and_the_others_are_checked(file, capsys):
    assert main(["check", str(file)]) == 2
    printed = capsys.readouterr()
    assert re.findall(r"^== (.*)$", printed.out, re.MULTILINE) == ["right", "wrong"]
    assert printed.out.count("Gradient of square: ") == 2
    assert "symcheck: broken could not be checked: ZeroDivisionError: division by zero" in printed.err
    assert "Traceback" not in printed.err


def test_a_traceback_is_shown_when_asked_for(file, capsys):
    assert main(["check", f"{file}::broken", "--traceback"]) == 2
    assert "line 12" in capsys.readouterr().err


def test_json_is_all_that_is_printed(file, capsys):
    assert main(["check", f"{file}::wrong", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["symcheck"] == symcheck.__version__
    (case,) = data["cases"]
    assert (case["name"], case["ok"], case["function"]) == ("wrong", False, "square")
    verdicts = {finding["candidate"]: finding["verdict"] for finding in case["findings"]}
    assert verdicts["formula"] == "FORMULA"
    assert verdicts["autograd"] == "OK"


def test_json_lists_what_could_not_be_checked(file, capsys):
    assert main(["check", str(file), "--json"]) == 2
    right, wrong, broken = json.loads(capsys.readouterr().out)["cases"]
    assert (right["ok"], wrong["ok"]) == (True, False)
    assert broken == {"name": "broken", "ok": False, "error": "ZeroDivisionError: division by zero"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "nowhere.py does not exist"),
        ("{file}::rihgt", "no case named 'rihgt': it has right, wrong, broken"),
        ("{file}::", "no case named ''"),
    ],
)
def test_misuse_exits_2_with_a_message_and_a_hint(file, capsys, target, message):
    assert main(["check", target.format(file=file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.endswith("usage: symcheck check FILE[::NAME]   (see symcheck check --help)\n")


def test_a_file_that_fails_is_named_with_its_line(file, capsys):
    file.write_text("x = 1\n\nx / 0\n")
    assert main(["check", str(file)]) == 2
    assert f"{file}:3" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["check"], ["chekc"], ["check", "a.py", "--jsno"]])
def test_a_mistyped_command_exits_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: symcheck" in capsys.readouterr().err


def test_no_command_shows_the_help_and_exits_2(capsys):
    assert main([]) == 2
    assert "check the gradients that a Python file defines" in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"symcheck {symcheck.__version__}\n"


@pytest.mark.parametrize(("extra", "colored"), [([], True), (["--no-color"], False)])
def test_colour_is_used_where_it_is_wanted(file, capsys, monkeypatch, extra, colored):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["check", f"{file}::right", *extra])
    assert ("\x1b[" in capsys.readouterr().out) == colored


def test_no_color_in_the_environment_is_obeyed(file, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    main(["check", f"{file}::right"])
    assert "\x1b[" not in capsys.readouterr().out


def test_the_example_of_the_readme_is_right():
    command = [sys.executable, "-c", "import sys; from symcheck.cli import main; sys.exit(main())", "check", EXAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLE.parent.parent, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b[" not in done.stdout
    assert re.search(r"formula +bias +(OK|ROUNDING)", done.stdout)
