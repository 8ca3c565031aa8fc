"""Every option, and where its value comes from: presets, TOML files, `--set`, flags. It imports `errors` alone: what an
option does belongs to the wing that reads it.
"""
