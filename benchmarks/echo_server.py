"""An MCP server with one tool, as small as can be: what is measured is the client."""

import json
import sys

for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "echo", "version": "1"},
            }
        case "tools/list":
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            result = {"tools": [{"name": "echo", "inputSchema": schema}]}
        case "tools/call":
            text = message["params"]["arguments"]["text"]
            result = {"content": [{"type": "text", "text": text}]}
        case _:
            result = {}
    if "id" in message:
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        answer |= {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
