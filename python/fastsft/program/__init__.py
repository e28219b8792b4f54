"""Runs a script's function as a program: starts ranks, ends the process, and checks replaced names."""
