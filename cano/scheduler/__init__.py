"""Running workflows by the clock. Knows the workflow; nothing below knows of it."""
