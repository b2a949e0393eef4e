"""Sessions: conversations made of runs; created, continued, forked, exported, cancelled,
deleted.
"""
