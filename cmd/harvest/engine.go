package main

import (
	"context"
	"path/filepath"

	"github.com/RelevanceAI/harvest/config"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/fake"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// openEngine opens the engine that the configuration names.
func openEngine(ctx context.Context, cfg config.Config) (engine.Engine, error) {
	switch cfg.Engine {
	case "fake":
		logf.Warnf(ctx, "the engine fake isolates nothing: it is for tests only")
		return fake.Open(filepath.Join(cfg.Data, "fake"), fake.Options{KeepOutput: cfg.OutputBytes})
	}
	return nil, errors.Newf(errors.Unsupported, "there is no engine %q", cfg.Engine)
}
