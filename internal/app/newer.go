package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"

	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/image"
)

const (
	newerTime   = 2 * time.Second // for the answer of the registry
	maxManifest = 1 << 20         // bytes of the description of a package
)

// agentPackages are the agents in the agent image: the name of the part, its package on the npm registry, and the
// argument of the build that chooses its version.
var agentPackages = []struct{ part, pkg, arg string }{
	{"claude", "@anthropic-ai/claude-code-linux-x64", "CLAUDE_CODE"},
	{"opencode", "opencode-linux-x64-baseline", "OPENCODE"},
}

// npmRegistry returns the npm registry of this environment: of a variable, or of the npm of this machine. "" if there
// is neither.
func npmRegistry(ctx context.Context) string {
	if address := cmp.Or(os.Getenv("NPM_CONFIG_REGISTRY"), os.Getenv("npm_config_registry")); address != "" {
		return address
	}
	ctx, cancel := context.WithTimeout(ctx, newerTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output()
	if err != nil { // best effort: most servers have no npm
		return ""
	}
	return strings.TrimSpace(string(out))
}

// newerAgents returns the arguments of a build of the agent image that has the newest versions of the agents, as far as
// they are newer than those of img. It is best effort: without an answer of the registry it returns none.
func newerAgents(ctx context.Context, img image.Image, registry string) (args []string) {
	ctx, cancel := context.WithTimeout(ctx, newerTime)
	defer cancel()
	type answer struct {
		i       int
		version string
	}
	answers := make(chan answer, len(agentPackages))
	for i, p := range agentPackages {
		go func() { answers <- answer{i, latest(ctx, registry, p.pkg)} }()
	}
	newest := make([]string, len(agentPackages))
	for range agentPackages {
		a := <-answers
		newest[a.i] = a.version
	}
	for i, p := range agentPackages {
		for _, part := range img.Parts {
			if part.Name == p.part && semver.IsValid("v"+newest[i]) &&
				semver.Compare("v"+newest[i], "v"+part.Version) > 0 {
				args = append(args, fmt.Sprintf("--build-arg %s=%s", p.arg, newest[i]))
			}
		}
	}
	return args
}

// newerProfiles returns the settings that choose the newest versions of the agents that sandboxes install, as far as
// they are newer than those of Harvest and of the configuration. It is best effort.
func newerProfiles(ctx context.Context, chosen []string, registry string) []string {
	ctx, cancel := context.WithTimeout(ctx, newerTime)
	defer cancel()
	newest := make([]string, len(profiles))
	var asked sync.WaitGroup
	for i, p := range profiles {
		pkg, version, _ := lastCut(p.NPM, "@")
		for _, text := range chosen {
			if name, other, _ := strings.Cut(text, "="); name == p.ID {
				version = other
			}
		}
		if version == "" {
			continue // of the image, or not chosen by Harvest
		}
		asked.Go(func() {
			if v := latest(ctx, registry, pkg); semver.IsValid("v"+v) && semver.Compare("v"+v, "v"+version) > 0 {
				newest[i] = p.ID + "=" + v
			}
		})
	}
	asked.Wait()
	return slices.DeleteFunc(newest, func(text string) bool { return text == "" })
}

// lastCut is strings.Cut around the last sep.
func lastCut(text, sep string) (before, after string, found bool) {
	at := strings.LastIndex(text, sep)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+len(sep):], true
}

// latest returns the version of a package that the registry calls its latest; "" if it is unknown.
func latest(ctx context.Context, registry, pkg string) string {
	address := strings.TrimRight(registry, "/") + "/" + url.PathEscape(pkg) + "/latest"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return ""
	}
	resp, err := netguard.Rules{Any: true}.Client(newerTime).Do(req) // the operator has chosen the registry
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var manifest struct{ Version string }
	if resp.StatusCode != http.StatusOK ||
		json.NewDecoder(io.LimitReader(resp.Body, maxManifest)).Decode(&manifest) != nil {
		return ""
	}
	return manifest.Version
}
