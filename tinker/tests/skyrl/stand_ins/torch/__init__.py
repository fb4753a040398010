"""Stands in for torch where only its name is needed: SkyRL's JAX backend imports it and computes nothing with it."""

__version__ = "0.0.0"


class Tensor:
    """For type checks: no value is one."""
