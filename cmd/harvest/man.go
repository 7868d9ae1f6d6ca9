//go:build man

package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/release"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// manCommands returns the command that writes manual pages. Releases are built without it.
func manCommands() []*cobra.Command {
	return []*cobra.Command{{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages",
		Hidden: true,
		Args:   cli.Args(1, 1, "a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return errors.Wrapf(err, "make the directory")
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // it names the day of the build
			// GenManTree takes the date from SOURCE_DATE_EPOCH.
			return errors.Wrapf(doc.GenManTree(root, &doc.GenManHeader{Title: "HARVEST", Section: "1",
				Source: "Harvest " + release.Version(), Manual: "Harvest"}, args[0]), "write the manual pages")
		},
	}}
}
