"""Running a script function as a program: its ranks, its end, and the names that a script has changed."""
