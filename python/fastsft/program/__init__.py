"""A script's function as a program: the start of the ranks, the process end, checks of replaced names."""
