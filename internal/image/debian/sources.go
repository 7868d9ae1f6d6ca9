package debian

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// suites of Debian. A mirror has all of them, so that this machine's mirror works for any of its
// releases.
var suites = []string{"oldoldstable", "oldstable", "stable", "testing", "unstable", "sid", "bullseye", "bookworm",
	"trixie", "forky"}

// hostOptionKeys are the apt settings of this machine that a build needs too.
var hostOptionKeys = []string{"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until",
	"Acquire::Check-Date"}

// hostSources returns this machine's sources for Debian's packages, or nil without any or without
// apt.
func hostSources(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format",
		"$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)").Output()
	if err != nil {
		return nil
	}
	return debianSources(string(out))
}

// debianSources selects Debian's sources from lines "URI RELEASE COMPONENT ORIGIN": repositories of
// other vendors must not get into the image. The origin is known only after apt has fetched the
// indexes; otherwise the URI must contain debian.
func debianSources(targets string) []string {
	var lines []string
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "main" {
			continue
		}
		known := len(f) > 3 && !strings.HasPrefix(f[3], "$(")
		uri, err := url.Parse(f[0])
		if err != nil || known && f[3] != "Debian" || !known && !strings.HasPrefix(path.Base(uri.Path), "debian") {
			continue
		}
		name, pocket := f[1], ""
		if i := strings.IndexAny(name, "-/"); i >= 0 {
			name, pocket = name[:i], strings.Replace(name[i:], "/updates", "-security", 1)
		}
		if !slices.Contains(suites, name) || !slices.Contains([]string{"", "-updates", "-security"}, pocket) {
			continue
		}
		if entry := fmt.Sprintf("deb %s %s%s main", f[0], suite, pocket); !slices.Contains(lines, entry) {
			lines = append(lines, entry)
		}
	}
	// The other sources are useless without the release itself.
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, " "+suite+" main") }) {
		return nil
	}
	slices.Sort(lines)
	return lines
}

// hostOptions returns the settings of this machine's apt to reach the sources.
func hostOptions(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return nil
	}
	var options []string
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(hostOptionKeys, key) && value != `"";` {
			options = append(options, key+" "+value)
		}
	}
	return options
}
