package image

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

// ConfigOf returns the configuration of an image from its form in OCI and Docker.
func ConfigOf(file *dockerspec.DockerOCIImage) Config {
	from := file.Config
	c := Config{Env: map[string]string{}, User: from.User, Dir: from.WorkingDir, Entrypoint: from.Entrypoint,
		Cmd: from.Cmd, Shell: from.Shell, Labels: from.Labels, StopSignal: from.StopSignal, OnBuild: from.OnBuild,
		Ports: slices.Sorted(maps.Keys(from.ExposedPorts)), Volumes: slices.Sorted(maps.Keys(from.Volumes)),
		Author: file.Author}
	for _, h := range file.History {
		if h.CreatedBy == "" && h.Comment == "" {
			continue
		}
		entry := History{By: h.CreatedBy, Comment: h.Comment, Author: h.Author, Empty: h.EmptyLayer}
		if h.Created != nil {
			entry.Created = h.Created.UTC()
		}
		c.History = append(c.History, entry)
	}
	for _, v := range from.Env {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			c.Env[name] = value
		}
	}
	if from.Healthcheck != nil {
		if text, err := json.Marshal(from.Healthcheck); err == nil {
			c.Healthcheck = text
		}
	}
	return c
}

// Docker returns the configuration in the form of OCI and Docker.
func (c Config) Docker() *dockerspec.DockerOCIImage {
	file := &dockerspec.DockerOCIImage{}
	file.Author = c.Author
	to := &file.Config
	to.User, to.WorkingDir, to.Entrypoint, to.Cmd, to.Shell = c.User, c.Dir, c.Entrypoint, c.Cmd, c.Shell
	to.Labels, to.StopSignal, to.OnBuild = c.Labels, c.StopSignal, c.OnBuild
	to.ExposedPorts, to.Volumes = set(c.Ports), set(c.Volumes)
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		to.Env = append(to.Env, name+"="+c.Env[name])
	}
	for _, h := range c.History {
		entry := ocispecs.History{CreatedBy: h.By, Comment: h.Comment, Author: h.Author, EmptyLayer: h.Empty}
		if !h.Created.IsZero() {
			entry.Created = &h.Created
		}
		file.History = append(file.History, entry)
	}
	health := dockerspec.HealthcheckConfig{}
	if len(c.Healthcheck) > 0 && json.Unmarshal(c.Healthcheck, &health) == nil {
		to.Healthcheck = &health
	}
	return file
}

func set(names []string) map[string]struct{} {
	if len(names) == 0 {
		return nil
	}
	all := map[string]struct{}{}
	for _, name := range names {
		all[name] = struct{}{}
	}
	return all
}
