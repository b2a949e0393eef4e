"""Model calls and tool calls: attempts, approvals, results, and the output ladder."""
