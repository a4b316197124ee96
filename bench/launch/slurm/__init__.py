"""Slurm: the job that a run asks for, and what happens inside of it."""
