package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is set when a release is built: -ldflags "-X main.release=1.2.3".
var release string

// version is the release, or what the build knows of its source.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = "-" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	return "devel" + revision + dirty
}

func (c *cli) versionCommand() *cobra.Command {
	return c.withOutput(&cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  count(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return c.show(view{json: v, names: []string{v.Version}, rows: [][]string{{"harvest " + v.Version, v.Go, v.Platform}}})
		},
	}, formatTable)
}
