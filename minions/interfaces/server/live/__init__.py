"""The runs that this process executes, and the streams of their events."""
