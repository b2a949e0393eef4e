"""The vocabulary: frozen values and the ABCs that applications subclass.

Nothing happens here: no I/O, no vendor, no state. Every other layer imports
these modules; they import none of the others.
"""
