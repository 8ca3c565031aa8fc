"""The search for options: trials train, are judged on validation items, and never see test items.

from fedgrec.studies.tune.study import Request, tune
found = tune(Request(subject, searches, "recall@20", trials=30), folder)
"""
