"""The examples of a README, run as the doctests they are."""

import doctest
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples_that_hold(readme: str) -> int:
    """How many examples ``readme`` shows; an example that prints anything else raises.

    ``readme`` is a path from the top of the repository. The blocks of one file share names.
    """
    text = (ROOT / readme).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    runner = doctest.DebugRunner(optionflags=doctest.ELLIPSIS)
    for number, block in enumerate(BLOCK.findall(text)):
        test = doctest.DocTestParser().get_doctest(block, names, f"{readme}, {number}", readme, 0)
        runner.run(test, clear_globs=False)
        names.update(test.globs)
    return runner.tries
