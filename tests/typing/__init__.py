"""What users see of the types: checked by mypy and basedpyright, and run."""
