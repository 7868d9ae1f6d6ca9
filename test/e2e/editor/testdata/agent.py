# An agent for tests: it speaks the Agent Client Protocol without a model. It asks before it writes a file.
import json, sys

def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def update(session, **fields):
    send({"method": "session/update", "params": {"sessionId": session, "update": fields}})

def receive():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit(0)

calls = 0

def prompt(session):
    global calls
    calls += 1
    call = {"toolCallId": "call_%d" % calls, "title": "Write made.txt", "kind": "edit",
            "rawInput": {"file_path": "made.txt", "content": "made by the agent\n"}, "locations": [{"path": "made.txt"}]}
    update(session, sessionUpdate="plan", entries=[{"content": "write a file", "priority": "high", "status": "in_progress"}])
    update(session, sessionUpdate="tool_call", status="pending", **call)
    send({"id": "ask", "method": "session/request_permission", "params": {"sessionId": session, "toolCall": call, "options": [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"}, {"optionId": "no", "name": "No", "kind": "reject_once"}]}})
    answer = receive()
    while answer.get("id") != "ask":
        answer = receive()
    allowed = answer["result"]["outcome"].get("optionId") == "yes"
    if allowed:
        open("made.txt", "w").write("made by the agent\n")
    update(session, sessionUpdate="tool_call_update", toolCallId=call["toolCallId"],
           status="completed" if allowed else "failed")
    update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": "written" if allowed else "left"})

while True:
    m = receive()
    result = {}
    if m.get("method") == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif m.get("method") == "session/new":
        result = {"sessionId": "s1"}
    elif m.get("method") == "session/prompt":
        update("s1", sessionUpdate="available_commands_update", availableCommands=[{"name": "shorten", "description": ""}])
        prompt(m["params"]["sessionId"])
        result = {"stopReason": "end_turn"}
    if "id" in m and "method" in m:
        send({"id": m["id"], "result": result})
