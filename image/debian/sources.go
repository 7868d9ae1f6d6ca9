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

// suites of Debian. Its mirrors have all of them, so that a machine's mirror serves whichever release the machine itself runs.
var suites = []string{"oldoldstable", "oldstable", "stable", "testing", "unstable", "sid", "bullseye", "bookworm", "trixie", "forky"}

// hostOptionKeys are the settings of apt on this machine that a build needs as much as apt itself does.
var hostOptionKeys = []string{"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until", "Acquire::Check-Date"}

// hostSources returns this machine's sources for Debian's packages; none if it has none or no apt.
func hostSources(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)").Output()
	if err != nil {
		return nil
	}
	return debianSources(string(out))
}

// debianSources picks Debian's own out of lines "URI RELEASE COMPONENT ORIGIN": other vendors' repositories must not get into
// the image. The origin is only known where apt has fetched the indexes; where it is not, the URI has to say debian.
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
	// Without the release itself, the rest is of no use.
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, " "+suite+" main") }) {
		return nil
	}
	slices.Sort(lines)
	return lines
}

// hostOptions returns the settings of this machine's apt that say how to reach the sources.
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
