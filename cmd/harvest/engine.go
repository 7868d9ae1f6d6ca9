package main

import (
	"context"
	"path/filepath"

	"github.com/RelevanceAI/harvest/config"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/fake"
	"github.com/RelevanceAI/harvest/engine/gvisor"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/debian"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/volume"
)

// openEngine opens the engine that the configuration names. Its Close also closes what it stands on.
func openEngine(ctx context.Context, cfg config.Config) (engine.Engine, error) {
	if cfg.Engine == "fake" {
		logf.Warnf(ctx, "the engine fake isolates nothing: it is for tests only")
		return fake.Open(filepath.Join(cfg.Data, "fake"), fake.Options{KeepOutput: cfg.OutputBytes})
	}
	base := debian.New(debian.Options{CertificateDir: cfg.CertificateDir})
	images, err := image.OpenLibrary(filepath.Join(cfg.Data, "images"), image.Sources{Named: map[string]image.Source{"base": base}})
	if err != nil {
		return nil, err
	}
	volumes, err := volume.OpenDir(filepath.Join(cfg.Data, "volumes"))
	if err != nil {
		return nil, err
	}
	eng, err := gvisor.Open(ctx, gvisor.Options{
		Dir: cfg.Data, Images: images, Volumes: volumes, Platform: cfg.Platform, OutputBytes: cfg.OutputBytes,
	})
	if err != nil {
		return nil, errors.Join(err, volumes.Close())
	}
	return &withVolumes{eng, volumes}, nil
}

// withVolumes is gVisor's engine together with the volumes that were opened for it.
type withVolumes struct {
	*gvisor.Engine
	volumes *volume.Local
}

func (e *withVolumes) Close() error { return errors.Join(e.Engine.Close(), e.volumes.Close()) }
