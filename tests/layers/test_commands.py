"""The command that checks everything is the same wherever it is written."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
TEST_COMMAND = 'python3 -m venv .venv && .venv/bin/pip install -q "nox[uv]" && .venv/bin/nox'


def test_the_readme_begins_with_the_demo_command_and_the_test_command():
    blocks = re.findall(
        r"^```sh\n(.*?)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks[:2] == [f"{TEST_COMMAND} -s demo", TEST_COMMAND]


def test_continuous_integration_runs_the_command_of_the_readme():
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_demo_has_its_prompt():
    words = (ROOT / "examples" / "prompts" / "harbour.txt").read_text().split()
    assert len(words) >= 520
