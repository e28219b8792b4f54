"""The ranks of a run: their rendezvous, process groups, and exchanges with each other."""
