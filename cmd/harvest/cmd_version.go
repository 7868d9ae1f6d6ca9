package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/internal/release"
)

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
			}{release.Version(), release.Commit(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return c.show(view{json: v, names: []string{v.Version},
				rows: [][]string{{"harvest " + v.Version, orDash(v.Revision), v.Go, v.Platform}}})
		},
	}, formatTable)
}
