package main

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Set in release builds: -ldflags "-X main.release=1.2.3 -X main.revision=COMMIT".
var release, revision string

// version is the release, or a version derived from the build information.
func version() string {
	if release != "" {
		return release
	}
	commit, changes, _ := strings.Cut(sourceCommit(), "+")
	if commit == "" {
		return "devel"
	}
	if changes != "" {
		changes = "+" + changes
	}
	return "devel-" + commit[:min(12, len(commit))] + changes
}

// sourceCommit is the commit of the source, with "+changes" if there were uncommitted ones; "" if the build
// does not know it.
func sourceCommit() string {
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

func (c *cli) versionCommand() *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  count(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version(), sourceCommit(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return c.show(view{json: v, names: []string{v.Version},
				rows: [][]string{{"harvest " + v.Version, orDash(v.Revision), v.Go, v.Platform}}})
		},
	}, formatTable)
}
