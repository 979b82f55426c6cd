"""The ``pagedkv`` command; one module per subcommand. Needs ``pagedkv-mlx[cli]``."""

from pagedkv_mlx.cli.main import main

__all__ = ["main"]
