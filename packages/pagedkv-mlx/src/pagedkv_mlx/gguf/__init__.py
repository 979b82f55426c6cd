"""GGUF files of llama models as folders that mlx-lm loads.

Needs the extra ``pagedkv-mlx[mlx-lm]``, which brings the ``tokenizers`` library.
"""

from pagedkv_mlx.gguf.errors import CacheFolderError
from pagedkv_mlx.gguf.folder import find_smollm2, model_folder

__all__ = ["CacheFolderError", "find_smollm2", "model_folder"]
