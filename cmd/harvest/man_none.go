//go:build !man

package main

import "github.com/spf13/cobra"

func manCommands() []*cobra.Command { return nil }
