"""A cache over NumPy arrays, written from the protocols alone: they admit another backend."""
