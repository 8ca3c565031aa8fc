"""What a person looks at: `report` of a run, `export` of a model, tables in every format. They import `runs` and below;
they compute nothing that is not shown.
"""
