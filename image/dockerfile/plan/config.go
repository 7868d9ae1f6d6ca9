package plan

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/platforms"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// resolver finds images for the converter, which calls it concurrently. It resolves one image at a time.
type resolver struct {
	doc     *document
	resolve Resolve

	mu     sync.Mutex
	found  map[[2]string]image.Image // guarded by mu; by platform, and normalised name without or with the image's digest
	failed int                       // guarded by mu; line of an image that was not found
}

// ResolveImageConfig implements llb.ImageMetaResolver. ref is normalised: "docker.io/library/debian:latest".
func (r *resolver) ResolveImageConfig(ctx context.Context, ref string, opt sourceresolver.Opt) (string, digest.Digest,
	[]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	platform := platforms.DefaultSpec()
	if opt.ImageOpt != nil && opt.ImageOpt.Platform != nil {
		platform = *opt.ImageOpt.Platform
	}
	name, line := r.doc.written(ref)
	on := foreign(&platform)
	img, known := r.found[[2]string{on, ref}]
	if !known {
		var err error
		if img, err = r.resolve(ctx, name, on); err != nil {
			r.failed = line
			return "", "", nil, err
		}
		if err := checkTriggers(img.Config.OnBuild); err != nil {
			return "", "", nil, err
		}
		bare, _, _ := strings.Cut(ref, "@")
		r.found[[2]string{on, ref}] = img
		r.found[[2]string{on, bare + "@" + img.Digest}] = img // the name that the converter gives it
	}
	config, err := json.Marshal(imageOf(img, platform))
	return ref, digest.Digest(img.Digest), config, errors.Wrapf(err, "encode the configuration of an image")
}

// maxTriggers is the maximum number of ONBUILD instructions of an image.
const maxTriggers = 100

// checkTriggers refuses the ONBUILD instructions of an image that are none.
func checkTriggers(texts []string) error {
	if len(texts) > maxTriggers {
		return errors.Newf(errors.Invalid, "the base has %d ONBUILD instructions, more than %d", len(texts),
			maxTriggers)
	}
	for _, text := range texts {
		result, err := parser.Parse(strings.NewReader(text))
		if err == nil && len(result.AST.Children) != 1 {
			err = errors.Errorf("want one instruction")
		}
		if err == nil {
			_, err = instructions.ParseCommand(result.AST.Children[0])
		}
		if err != nil {
			return errors.Newf(errors.Invalid, "the base has an invalid instruction ONBUILD %.200q: %s", text,
				clip(err.Error()))
		}
	}
	return nil
}

// imageOf returns an image as the converter knows it.
func imageOf(img image.Image, platform ocispecs.Platform) *dockerspec.DockerOCIImage {
	c := img.Config
	file := &dockerspec.DockerOCIImage{}
	file.Platform = platform
	file.Author = c.Author
	// The converter takes an image without layers for the empty one.
	file.RootFS = ocispecs.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.Digest(img.Digest)}}
	file.Config.User, file.Config.WorkingDir = c.User, c.Dir
	file.Config.Entrypoint, file.Config.Cmd, file.Config.Shell = c.Entrypoint, c.Cmd, c.Shell
	file.Config.Labels, file.Config.StopSignal, file.Config.OnBuild = c.Labels, c.StopSignal, c.OnBuild
	env := c.OwnEnv()
	for _, name := range slices.Sorted(maps.Keys(env)) {
		file.Config.Env = append(file.Config.Env, name+"="+env[name])
	}
	file.Config.ExposedPorts, file.Config.Volumes = set(c.Ports), set(c.Volumes)
	for _, h := range c.History {
		entry := ocispecs.History{CreatedBy: h.By, Comment: h.Comment, Author: h.Author, EmptyLayer: h.Empty}
		if !h.Created.IsZero() {
			entry.Created = &h.Created
		}
		file.History = append(file.History, entry)
	}
	health := dockerspec.HealthcheckConfig{}
	if len(c.Healthcheck) > 0 && json.Unmarshal(c.Healthcheck, &health) == nil {
		file.Config.Healthcheck = &health
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

var userPattern = pattern.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)

// configOf returns the configuration that the converter made.
func configOf(file *dockerspec.DockerOCIImage) (image.Config, error) {
	from := file.Config
	c := image.Config{Env: map[string]string{}, User: from.User, Dir: from.WorkingDir, Entrypoint: from.Entrypoint,
		Cmd: from.Cmd, Shell: from.Shell, Labels: from.Labels, StopSignal: from.StopSignal, OnBuild: from.OnBuild,
		Ports: slices.Sorted(maps.Keys(from.ExposedPorts)), Volumes: slices.Sorted(maps.Keys(from.Volumes)),
		Author: file.Author}
	for _, h := range file.History {
		entry := image.History{By: h.CreatedBy, Comment: h.Comment, Author: h.Author, Empty: h.EmptyLayer}
		if h.Created != nil {
			entry.Created = h.Created.UTC()
		}
		c.History = append(c.History, entry)
	}
	for _, kv := range from.Env {
		name, value, _ := strings.Cut(kv, "=")
		if name == "" || strings.ContainsRune(kv, 0) {
			return c, errors.Newf(errors.Invalid, "invalid variable %.100q", kv)
		}
		c.Env[name] = value
	}
	if c.User != "" && !userPattern().MatchString(c.User) {
		return c, errors.Remedy(errors.Newf(errors.Invalid, "invalid user %.100q", c.User),
			"give a name or a number, either followed by ':' and a group")
	}
	if from.Healthcheck != nil {
		text, err := json.Marshal(from.Healthcheck)
		if err != nil {
			return c, errors.Wrapf(err, "encode a health check")
		}
		c.Healthcheck = text
	}
	return c, nil
}
