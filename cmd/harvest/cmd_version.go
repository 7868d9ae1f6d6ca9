package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/internal/base/release"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) versionCommand() *cobra.Command {
	var check bool
	var url string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
				Newest   string `json:"newest,omitempty"`
			}{Version: release.Version(), Revision: release.Commit(), Go: runtime.Version(),
				Platform: runtime.GOOS + "/" + runtime.GOARCH}
			rows := [][]string{{"harvest " + v.Version, cli.OrDash(v.Revision), v.Go, v.Platform}}
			if check {
				var err error
				if v.Newest, err = newest(cmd.Context(), url); err != nil {
					return err
				}
				rows = append(rows, []string{"newest release", v.Newest, standing(v.Version, v.Newest)})
			}
			return c.Show(cli.View{JSON: v, Names: []string{v.Version}, Rows: rows})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "ask the network for the newest release, and compare")
	cmd.Flags().StringVar(&url, "url", newestRelease, "checksums.txt of the newest release, for --check")
	return c.WithOutput(cmd, cli.FormatTable)
}
