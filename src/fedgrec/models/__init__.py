"""What a trained method answers: rankings and their metrics, explanations, newcomers, a model on disk. They import
`methods`, `data` and below: how a model comes about belongs in `runs`.
"""
