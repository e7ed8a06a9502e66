"""Schedulers to compare: this program's own, and what others are known to do."""
