"""The three measurements of ``cpu_decode.py``: whole steps, building alone, and large pools."""
