//go:build !linux

package main

import (
	"context"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// ensureServer returns an error: servers run on Linux only.
func (c commands) ensureServer(context.Context, config.Config, *client.Client) error {
	return errNoServer()
}
