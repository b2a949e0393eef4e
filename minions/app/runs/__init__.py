"""Runs of an application: started, queued, streamed, recovered, in batches and by schedule."""
