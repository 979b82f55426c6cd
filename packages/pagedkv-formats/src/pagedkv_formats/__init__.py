"""Page formats: how the bytes of a page mean keys and values, and how pages become rows."""

from pagedkv_formats.affine import PagedQuantization
from pagedkv_formats.dense import DensePages
from pagedkv_formats.recorded import RowCodec, recordable
from pagedkv_formats.registry import codec_from_dict
from pagedkv_formats.rows import block_rows, run_rows
from pagedkv_formats.turboquant import PagedTurboQuant

__all__ = [
    "DensePages",
    "PagedQuantization",
    "PagedTurboQuant",
    "RowCodec",
    "block_rows",
    "codec_from_dict",
    "recordable",
    "run_rows",
]
