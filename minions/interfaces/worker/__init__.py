"""Workers: processes that execute the runs of queues."""
