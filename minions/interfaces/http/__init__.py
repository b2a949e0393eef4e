"""What the server and workers say and hear over HTTP: callers, access, connections, answers."""
