"""Static checks of a recipe: each inspects a draft and reports faults. Nothing is executed."""
