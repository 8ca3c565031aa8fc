"""One file for each federated method: its verbs, its options, what it can. They import `kernels` and below; who takes
part, and how often, belongs in `runs` and `federation`.
"""
