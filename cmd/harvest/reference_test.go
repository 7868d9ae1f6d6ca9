package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/RelevanceAI/harvest/internal/cli"
)

// TestReference checks that docs/cli.md is what the commands' help says. HARVEST_TEST_UPDATE=1 writes it.
func TestReference(t *testing.T) {
	t.Parallel()
	c := newCommands("harvest", strings.NewReader(""), io.Discard, io.Discard, nil)
	root := c.root()
	var b strings.Builder
	b.WriteString("# Commands\n\nThis page is generated from `harvest --help`. Every command also has these flags:\n\n")
	flagTable(&b, root.PersistentFlags())
	b.WriteString("\n" + strings.TrimSpace(strings.ReplaceAll(cli.ExitCodesHelp, "\n  ", "\n- ")) + "\n")
	for _, child := range root.Commands() {
		reference(&b, child, 2)
	}
	const path = "../../docs/cli.md"
	if os.Getenv("HARVEST_TEST_UPDATE") == "1" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || string(have) != b.String() {
		t.Errorf("docs/cli.md is not what the commands say (%v); write it with HARVEST_TEST_UPDATE=1", err)
	}
}

// reference writes the section of a command and those of its subcommands.
func reference(b *strings.Builder, cmd *cobra.Command, level int) {
	if cmd.Hidden {
		return
	}
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n%s %s\n\n```text\n%s\n```\n", strings.Repeat("#", level), cmd.CommandPath(),
		strings.TrimSpace(about))
	if cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		fmt.Fprintf(b, "\n```sh\n%s\n", cmd.UseLine())
		if cmd.Example != "" {
			fmt.Fprintf(b, "\n%s\n", strings.ReplaceAll(strings.TrimRight(cmd.Example, "\n"), "  harvest", "harvest"))
		}
		b.WriteString("```\n")
	}
	if cmd.LocalNonPersistentFlags().HasAvailableFlags() {
		b.WriteString("\n")
		flagTable(b, cmd.LocalNonPersistentFlags())
	}
	for _, child := range cmd.Commands() {
		reference(b, child, level+1)
	}
}

// flagTable writes a table of flags.
func flagTable(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | value | does |\n|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, about := pflag.UnquoteUsage(f)
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		switch f.DefValue {
		case "", "false", "[]", "0", "0s":
		default:
			about += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, kind, strings.NewReplacer("|", `\|`, "\n", " ").Replace(about))
	})
}
