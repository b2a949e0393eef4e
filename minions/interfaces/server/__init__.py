"""Recipes, runs and sessions over HTTP. Start with `app.create_app`; nothing is imported here."""
