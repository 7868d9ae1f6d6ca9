package main

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) doctorCommand() *cobra.Command {
	fix := false
	cmd := c.WithOutput(&cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, and suggest fixes",
		Long:  "Check this machine, and suggest a fix for each problem. The exit code is 0 if sandboxes work, 1 if not.",
		Example: `  harvest doctor
  sudo harvest doctor --fix`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.Config()
			if err != nil {
				return err
			}
			findings := examine(cmd.Context(), cfg)
			if fix {
				if err := c.fix(cmd.Context(), findings); err != nil {
					return err
				}
				findings = examine(cmd.Context(), cfg)
			}
			if err := c.Show(findingsView(findings)); err != nil {
				return err
			}
			if slices.ContainsFunc(findings, func(f api.Finding) bool { return f.Needed && !f.OK }) {
				return cli.OwnExit(1)
			}
			return nil
		},
	}, cli.FormatTable)
	cmd.Flags().BoolVar(&fix, "fix", false, "install missing Debian packages, as root")
	return cmd
}

func findingsView(findings []api.Finding) cli.View {
	v := cli.View{JSON: findings, Header: []string{"", "WHAT", "STATUS"}}
	for _, f := range findings {
		mark := "ok"
		switch {
		case !f.OK && f.Needed:
			mark = "FAIL"
		case !f.OK:
			mark = "weak"
		}
		if !f.OK {
			v.Names = append(v.Names, f.Name)
		}
		v.Rows = append(v.Rows, []string{mark, f.Name, f.Detail})
		if f.Remedy != "" {
			v.Rows = append(v.Rows, []string{"", "", "→ " + f.Remedy})
		}
	}
	return v
}

// fix installs the packages that the findings lack.
func (c commands) fix(ctx context.Context, findings []api.Finding) error {
	var packages []string
	for _, f := range findings {
		if !f.OK && f.Fix != "" {
			packages = append(packages, f.Fix)
		}
	}
	if len(packages) == 0 {
		c.Notef("--fix has nothing to install")
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.Remedy(errors.Newf(errors.Denied, "only root can install %s", strings.Join(packages, " ")),
			"sudo apt-get install %s", strings.Join(packages, " "))
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.Remedy(errors.Explainf(err, errors.Unsupported, "apt-get: not found on this machine"),
			"install the contents of these Debian packages: %s", strings.Join(packages, " "))
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"},
		packages...)} {
		c.Notef("apt-get %s", strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(slices.Clone(c.Environ), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = c.Err, c.Err
		if err := cmd.Run(); err != nil {
			return errors.Remedy(errors.Explainf(err, errors.Unavailable, "apt-get %s failed", args[0]),
				"read its messages above, and check that the package sources are reachable")
		}
	}
	c.Notef("installed: %s", strings.Join(packages, " "))
	return nil
}
