package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (c *cli) configCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "config",
		Short: "Show the effective configuration, and where each value comes from",
		Long: `Shows the effective configuration as a file that --config accepts. Each option comes from, in rising order: its default; the
file that --config or HARVEST_CONFIG names, or config.yaml in the data directory or in /etc/harvest; the environment, as HARVEST_
and its name (limits.memory is HARVEST_LIMITS_MEMORY); flags.`,
		Example: `  harvest config
  HARVEST_LIMITS_MEMORY=4GiB harvest config
  harvest config > config.yaml`,
		Args: count(0, 0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := c.config()
			if err != nil {
				return err
			}
			fmt.Fprint(c.out, cfg.Effective())
			return nil
		},
	}
}
