"""What users' type checkers see; nothing here is run."""
