"""The program that starts one confined job, watches its process tree and ends it. Standard library
only: it runs with `python -I -S`, before anything else is loaded.
"""
