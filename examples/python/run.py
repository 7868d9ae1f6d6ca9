"""Runs a command in a sandbox of Harvest and prints the sandbox's events; needs Python 3.9 and nothing else.

HARVEST_URL and HARVEST_API_KEY name the server.
"""

import json
import os
import urllib.error
import urllib.request


class Problem(Exception):
    """The server refused a request; its text says what to do."""


def call(method, path, body=None):
    """Sends one request, and returns the response, whose body is not read yet."""
    request = urllib.request.Request(os.environ["HARVEST_URL"] + path, method=method)
    request.add_header("Authorization", "Bearer " + os.environ["HARVEST_API_KEY"])
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.data = json.dumps(body).encode()
    try:
        return urllib.request.urlopen(request, timeout=600)
    except urllib.error.HTTPError as failed:
        problem = json.load(failed)
        remedy = problem.get("remedy")
        raise Problem(problem["detail"] + (": " + remedy if remedy else "")) from None


def events(stream):
    """Yields the name and the data of each event of a stream until it ends."""
    name, data = "", ""
    for line in stream:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data = value
        elif not field and name:
            yield name, json.loads(data)
            name, data = "", ""


sandbox = json.load(call("POST", "/v1/sandboxes", {"name": "python"}))
path = "/v1/sandboxes/" + sandbox["id"]
try:
    result = json.load(call("POST", path + "/exec", {"args": ["sh", "-c", "echo $((6*7))"]}))
    print(result["stdout"], end="")
    try:
        call("GET", path + "/files?path=/missing")
    except Problem as problem:
        print("refused:", problem)
finally:
    call("DELETE", path)

# Events are kept after the end of the sandbox. The stream waits for new ones, so the loop ends it.
with call("GET", "/v1/events?stream=" + sandbox["id"]) as stream:
    for name, data in events(stream):
        print("event:", name)
        if name == "sandbox.terminated":
            break
