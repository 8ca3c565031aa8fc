"""The loops inside `local_update`, readable (`reference`) and fast (compiled, PyTorch, Triton). They import `cable` and
`config`: they know arrays, not who calls them.
"""
