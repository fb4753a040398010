"""Sends the numbers of a run folder to an experiment tracker, through the tracker's own Python package.

The process reads the run folder and nothing else, so it can neither slow nor end the run. `main` follows the folder,
`run_folder` reads its files, `place` keeps what was sent, and `trackers` has one class per package.
"""
