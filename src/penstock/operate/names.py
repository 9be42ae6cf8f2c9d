"""Which name was meant; decided below, where a start asks it too. Here for all that is asked from outside."""

from penstock.checkpoint.names import near, which_checkpoint

__all__ = ["near", "which_checkpoint"]
