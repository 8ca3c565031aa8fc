"""What is found out by many runs, or by watching them: `compare`, `tune`, `reproduce`, `audit`. They import `pages` and
below: one run belongs in `runs`.
"""
