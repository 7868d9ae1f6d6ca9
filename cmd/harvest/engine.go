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
	"github.com/RelevanceAI/harvest/image/oci"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/volume"
)

// openEngine opens the engine that the configuration names. Its Close also closes what it stands on.
func openEngine(ctx context.Context, cfg config.Config) (engine.Engine, error) {
	if cfg.Engine == "fake" {
		logf.Warnf(ctx, "the engine fake isolates nothing: it is for tests only")
		return fake.Open(filepath.Join(cfg.Data, "fake"), fake.Options{KeepOutput: cfg.OutputBytes})
	}
	images, err := openImages(cfg)
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

// openImages opens the library with everything that can make an image.
func openImages(cfg config.Config) (*image.Library, error) {
	registry, err := oci.Open(oci.Options{
		Dir: filepath.Join(cfg.Data, "blobs"), CertificateDir: cfg.CertificateDir, Mirrors: cfg.Registries.MirrorsByHost(), Insecure: cfg.Registries.Insecure,
		MaxBytes: cfg.ImageLimits.Bytes, MaxFiles: int64(cfg.ImageLimits.Files),
	})
	if err != nil {
		return nil, err
	}
	return image.OpenLibrary(filepath.Join(cfg.Data, "images"), image.Sources{
		Named:    map[string]image.Source{"base": debian.New(debian.Options{CertificateDir: cfg.CertificateDir})},
		Registry: registry,
	})
}

// withVolumes is gVisor's engine together with the volumes that were opened for it.
type withVolumes struct {
	*gvisor.Engine
	volumes *volume.Local
}

func (e *withVolumes) Close() error { return errors.Join(e.Engine.Close(), e.volumes.Close()) }
