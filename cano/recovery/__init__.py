"""What is written down of a run, and how to come back from it. Knows nothing of tasks."""
