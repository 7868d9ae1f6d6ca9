package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) configCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "config",
		Short: "Show the effective configuration and its sources",
		Long: `Show the effective configuration, as a file that --config accepts. Later sources override earlier
ones:

  1. the default of the option
  2. the configuration file: --config or HARVEST_CONFIG, else config.yaml in the data directory,
     else /etc/harvest/config.yaml
  3. the environment: HARVEST_ and the name, such as HARVEST_LIMITS_MEMORY for limits.memory
  4. flags`,
		Example: `  harvest config
  HARVEST_LIMITS_MEMORY=4GiB harvest config
  harvest config > config.yaml`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := c.Config()
			if err != nil {
				return err
			}
			fmt.Fprint(c.Out, cfg.Effective())
			return nil
		},
	}
}
