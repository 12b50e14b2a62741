"""One unit of work. Knows nothing of stores, nor of the state machine that calls it."""
