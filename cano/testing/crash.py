"""Crashed: the process died here."""

from __future__ import annotations


class Crashed(BaseException):
    """Stands for the death of the process. It is no Exception, so a run lets it through as it would end in a crash: nothing
    is committed, compensated or cleared. The log is what a resume would find.
    """
