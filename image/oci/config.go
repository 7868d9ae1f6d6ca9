package oci

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/rootfs"
)

// configFile is the configuration of an image in the form of OCI and Docker. Package v1 lacks a field of health checks.
type configFile struct {
	v1.ConfigFile
	Config commandConfig `json:"config"`
}

type commandConfig struct {
	v1.Config
	Healthcheck *dockerspec.HealthcheckConfig `json:"Healthcheck,omitempty"`
}

// configOf returns the command configuration of an image.
func configOf(file *configFile) image.Config {
	c := file.Config
	config := image.Config{
		Env: map[string]string{}, User: c.User, Dir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Shell: c.Shell,
		Labels: c.Labels, StopSignal: c.StopSignal, OnBuild: c.OnBuild, Author: file.Author,
		Ports: slices.Sorted(maps.Keys(c.ExposedPorts)), Volumes: slices.Sorted(maps.Keys(c.Volumes)),
	}
	for _, h := range file.History {
		if h.CreatedBy == "" && h.Comment == "" {
			continue
		}
		config.History = append(config.History, image.History{Created: h.Created.UTC(), By: h.CreatedBy,
			Comment: h.Comment, Author: h.Author, Empty: h.EmptyLayer})
	}
	for _, v := range c.Env {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			config.Env[name] = value
		}
	}
	if c.Healthcheck != nil {
		if text, err := json.Marshal(c.Healthcheck); err == nil {
			config.Healthcheck = text
		}
	}
	return config
}

// release returns the distribution of an image from its os-release.
func release(w *rootfs.Writer) []image.Part {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, err := w.ReadFile(name, 64<<10)
		if err != nil {
			continue
		}
		values := map[string]string{}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for lines.Scan() {
			key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
			values[key] = strings.Trim(value, `"'`)
		}
		if values["ID"] != "" {
			return []image.Part{{Name: values["ID"], Version: values["VERSION_ID"]}}
		}
	}
	return nil
}
