"""How the steps of each kind are built, planned and run: modules named as in `recipe/kinds`."""
