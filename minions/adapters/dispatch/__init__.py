"""Engines that give runs to workers."""
