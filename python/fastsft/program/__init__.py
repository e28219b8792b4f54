"""A script's function as a program: the ranks' start, the process end, checks of replaced names."""
