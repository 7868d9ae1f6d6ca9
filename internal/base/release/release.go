// Package release names the version of this program.
package release

import (
	"runtime/debug"
	"strings"
)

// Set in release builds: -ldflags "-X github.com/RelevanceAI/harvest/internal/release.version=1.2.3
// -X github.com/RelevanceAI/harvest/internal/release.revision=COMMIT".
var version, revision string

// Version is the release, or "devel" and the commit that the build information contains.
func Version() string {
	if version != "" {
		return version
	}
	commit, changes, _ := strings.Cut(Commit(), "+")
	if commit == "" {
		return "devel"
	}
	if changes != "" {
		changes = "+" + changes
	}
	return "devel-" + commit[:min(12, len(commit))] + changes
}

// Commit is the commit of the source, with "+changes" if there were uncommitted ones; "" if the build does not
// know it.
func Commit() string {
	if revision != "" {
		return revision
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return stamp(info.Settings)
}

// stamp is the commit that the go command has stamped into the binary.
func stamp(settings []debug.BuildSetting) string {
	commit, changes := "", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changes = "+changes"
		}
	}
	if commit == "" {
		return ""
	}
	return commit + changes
}
