"""The finite-state machine. The only package that knows both tasks and what is written down."""
