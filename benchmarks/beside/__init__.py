"""cano beside other engines, where both can do the same thing: `python -m benchmarks.beside`."""
