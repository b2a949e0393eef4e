"""Settings to models, databases, extensions and the runtime that has them; nothing is opened."""
