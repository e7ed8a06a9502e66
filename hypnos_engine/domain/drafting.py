"""How many tokens of one step may be guesses; planner and worker have to agree, for the logits of each take memory."""

from hypnos_engine.domain.kinds import Drafts

MOST_DRAFTED = 15
"""Guesses in one step. They are all for the same answer."""


def output_rows(slots: int, drafts: Drafts) -> int:
    """Tokens of one step whose logits are kept: one for each slot, and the guesses."""
    return max(slots, 1) + (0 if drafts is Drafts.OFF else MOST_DRAFTED)
