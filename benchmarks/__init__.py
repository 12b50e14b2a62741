"""What the engine costs beside a loop written by hand. Run it with `python -m benchmarks`; see `__main__`."""
