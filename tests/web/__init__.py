"""The page, in a browser: one browser and one server for all of its tests."""
