package app

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/agent"
	"github.com/RelevanceAI/harvest/internal/image/debian"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
	"github.com/RelevanceAI/harvest/internal/image/oci"
)

// openImages opens the library with every image source. Dockerfiles can be built once the returned source is
// connected.
func openImages(cfg config.Config) (dockerfile.Shelf, *dockerfile.Source, error) {
	rules, err := rulesOf(cfg)
	if err != nil {
		return dockerfile.Shelf{}, nil, err
	}
	registry, err := oci.Open(oci.Options{
		Dir: filepath.Join(cfg.Data, "blobs"), CertificateDir: cfg.CertificateDir,
		Mirrors: cfg.Registries.MirrorsByHost(), Insecure: cfg.Registries.Insecure,
		MaxBytes: cfg.ImageLimits.Bytes, MaxFiles: int64(cfg.ImageLimits.Files),
		Transport: transports(rules, oci.NewTransport),
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
		Named: map[string]image.Source{
			"base":  debian.New(debian.Options{CertificateDir: cfg.CertificateDir}),
			"agent": agent.New(builds),
		},
		Registry:   registry,
		Dockerfile: builds,
	})
	return dockerfile.Shelf{Library: library, Cache: cache}, builds, err
}

// files is a builder whose images are files on this machine.
type files interface {
	Root(img image.Image) string
	Layer(img image.Image) string
	Use(id, who string) (release func(), err error)
}

// exporter returns a function that writes the engine's images as OCI archives, nil if they are not files on
// this machine.
func exporter(eng engine.Engine) func(context.Context, image.Image, io.Writer) error {
	library, ok := eng.Images().(files)
	if !ok {
		return nil
	}
	return func(ctx context.Context, img image.Image, w io.Writer) error {
		release, err := library.Use(img.ID, "an export")
		if err != nil {
			return err
		}
		defer release()
		root, err := os.Open(library.Root(img))
		if err != nil {
			return errors.Wrapf(err, "open image %s", img.ID)
		}
		defer root.Close()
		var layer *os.File
		if name := library.Layer(img); name != "" {
			if layer, err = os.Open(name); err != nil {
				return errors.Wrapf(err, "open the layer of image %s", img.ID)
			}
			defer layer.Close()
		}
		return oci.Export(ctx, w, img, root, layer)
	}
}

// clearUploads returns the directory for build contexts, below the data directory. It removes the leftovers of a
// server that crashed.
func clearUploads(data string) (string, error) {
	dir := filepath.Join(data, uploadsName)
	if err := os.RemoveAll(dir); err != nil {
		return "", errors.Wrapf(err, "clear the uploads")
	}
	return dir, errors.Wrapf(os.MkdirAll(dir, 0o700), "create the directory of uploads")
}

const (
	collectEvery = 24 * time.Hour
	collectLook  = 5 * time.Minute // interval between checks: a background server does not live long
)

// collectDaily removes unneeded images once a day until the returned function is called. sessions removes the files of
// sessions that ended before a time.
func collectDaily(ctx context.Context, cfg config.Config, images image.Builder,
	sessions func(ctx context.Context, before time.Time) (int, error)) (stop func()) {
	c, ok := images.(image.Collector)
	if !ok || cfg.ImageGC.Age == 0 && cfg.ImageGC.Sessions == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var task sync.WaitGroup
	task.Go(func() {
		tick := time.NewTicker(collectLook)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := collect(ctx, cfg, c, sessions); err != nil && ctx.Err() == nil {
				logf.Errorf(ctx, "collect images: %v", err)
			}
		}
	})
	return func() {
		cancel()
		task.Wait()
	}
}

// collect collects images unless it was done within a day. The mtime of a file records the last time.
func collect(ctx context.Context, cfg config.Config, c image.Collector,
	sessions func(ctx context.Context, before time.Time) (int, error)) (err error) {
	mark := filepath.Join(cfg.Data, "images", ".collected")
	if info, err := os.Stat(mark); err == nil && time.Since(info.ModTime()) < collectEvery {
		return nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	if cfg.ImageGC.Sessions > 0 {
		var n int
		if n, err = sessions(ctx, time.Now().Add(-cfg.ImageGC.Sessions)); n > 0 {
			logf.Infof(ctx, "removed the files of sessions: %d snapshots", n)
		}
	}
	if cfg.ImageGC.Age == 0 {
		return err
	}
	done, e := c.Collect(ctx, image.Collection{Age: cfg.ImageGC.Age, Size: cfg.ImageGC.Size})
	if done.Freed > 0 {
		logf.Infof(ctx, "removed %d unused images; with the build cache that freed %s", len(done.Images),
			units.BytesSize(float64(done.Freed)))
	}
	return errors.Join(err, e)
}
