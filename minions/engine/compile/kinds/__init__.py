"""How the steps of each kind are built, planned and run; modules are named as in `recipe/kinds`."""
