"""Observers that come with cano: log lines, metrics, spans, and progress on a terminal."""
