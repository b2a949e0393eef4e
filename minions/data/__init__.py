"""JSON, codecs, schemas, patterns, texts and errors: it knows nothing of agents."""
