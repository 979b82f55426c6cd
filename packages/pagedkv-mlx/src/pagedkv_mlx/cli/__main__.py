"""``python -m pagedkv_mlx.cli`` is the ``pagedkv`` command."""

import sys

from pagedkv_mlx.cli.main import main

sys.exit(main())
