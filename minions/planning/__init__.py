"""Turns instructions in prose into recipes, by a recipe whose output is checked as one."""
