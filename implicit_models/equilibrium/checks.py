"""Checks of the numbers that solvers, stopping rules, windows and gradients are made with."""


def check_count(name: str, value: int, minimum: int = 1) -> None:
    """Raise a ValueError unless a number is whole and large enough."""
    if not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} is {value}; it must be {minimum} or more, and whole")


def check_damping(damping: float) -> None:
    """Raise a ValueError unless a damping lies between 0 and 2."""
    if not 0.0 < damping < 2.0:
        raise ValueError(f"damping is {damping}; it must lie between 0 and 2 (exclusive)")


def check_positive(name: str, value: float) -> None:
    """Raise a ValueError unless a number is positive."""
    if not value > 0.0:
        raise ValueError(f"{name} is {value}; it must be positive")
