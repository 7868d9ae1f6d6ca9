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
	"github.com/RelevanceAI/harvest/image/dockerfile"
	"github.com/RelevanceAI/harvest/image/oci"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/volume"
)

// openEngine opens the engine that the configuration names. Its Close also closes what it stands on.
func openEngine(ctx context.Context, cfg config.Config) (engine.Engine, error) {
	if cfg.Engine == "fake" {
		logf.Warnf(ctx, "the engine fake isolates nothing: it is for tests only")
		return fake.Open(filepath.Join(cfg.Data, "fake"), fake.Options{KeepOutput: cfg.OutputBytes})
	}
	images, builds, err := openImages(cfg)
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
	return &withVolumes{eng, volumes, images, builds}, nil
}

// openImages opens the library with everything that can make an image. Dockerfiles are built once the source is connected.
func openImages(cfg config.Config) (dockerfile.Shelf, *dockerfile.Source, error) {
	registry, err := oci.Open(oci.Options{
		Dir: filepath.Join(cfg.Data, "blobs"), CertificateDir: cfg.CertificateDir, Mirrors: cfg.Registries.MirrorsByHost(), Insecure: cfg.Registries.Insecure,
		MaxBytes: cfg.ImageLimits.Bytes, MaxFiles: int64(cfg.ImageLimits.Files),
	})
	if err != nil {
		return dockerfile.Shelf{}, nil, err
	}
	cache, err := dockerfile.OpenCache(filepath.Join(cfg.Data, "build-cache"), cfg.BuildCache)
	if err != nil {
		return dockerfile.Shelf{}, nil, err
	}
	builds := dockerfile.New(dockerfile.Options{Cache: cache, Run: cfg.ExecTimeout})
	library, err := image.OpenLibrary(filepath.Join(cfg.Data, "images"), image.Sources{
		Named:      map[string]image.Source{"base": debian.New(debian.Options{CertificateDir: cfg.CertificateDir})},
		Registry:   registry,
		Dockerfile: builds,
	})
	return dockerfile.Shelf{Library: library, Cache: cache}, builds, err
}

// withVolumes is gVisor's engine together with what was opened for it.
type withVolumes struct {
	*gvisor.Engine
	volumes *volume.Local
	images  dockerfile.Shelf
	builds  *dockerfile.Source
}

// connect lets images be built in sandboxes of the fleet, until the function that it returns is called.
func (e *withVolumes) connect(fleet *sandbox.Fleet) func(context.Context) error {
	e.builds.Connect(e.images, fleet.Builds())
	return e.builds.Close
}

func (e *withVolumes) Close() error { return errors.Join(e.Engine.Close(), e.volumes.Close()) }
