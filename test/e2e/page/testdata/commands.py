# An agent for tests: it speaks the Agent Client Protocol, has commands of its own, and repeats prompts.
import json, sys

def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def update(**fields):
    send({"method": "session/update", "params": {"sessionId": "s1", "update": fields}})

for line in sys.stdin:
    m = json.loads(line)
    result = {}
    if m.get("method") == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif m.get("method") == "session/new":
        result = {"sessionId": "s1"}
    elif m.get("method") == "session/prompt":
        update(sessionUpdate="available_commands_update", availableCommands=[
            {"name": "compact", "description": "<b>Shorten</b> it", "input": {"hint": "how"}}, {"name": "count"}])
        text = m["params"]["prompt"][-1]["text"]
        update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "I got " + text})
        result = {"stopReason": "end_turn"}
    if "id" in m and "method" in m:
        send({"id": m["id"], "result": result})
