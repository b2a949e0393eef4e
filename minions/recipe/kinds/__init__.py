"""The kinds of steps, one module each: its keys, its spec,
its checks, and how analysis shows it.
"""
