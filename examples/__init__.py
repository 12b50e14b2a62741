"""Whole programs to learn from, run as `python -m examples.NAME`; their docstrings say what they print."""
