"""Receipts: one for each operation on a box, chained, so that a change of any byte is found.

They outlive their box by `receipts_days`. They are read where they are kept: no server has to run.
"""
