"""Slurm's own words: what sacct, scontrol and sacctmgr print, read into a trace. Owns: nothing itself."""
