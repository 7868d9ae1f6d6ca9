// Package agent makes the agent image: the programs that coding agents and their projects need. The
// image is an embedded Dockerfile with its context, and is built like any other Dockerfile.
package agent

import (
	"context"
	"embed"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

const (
	partsFile = "/usr/share/harvest/parts.json" // list of parts, written by the build
	maxParts  = 1 << 20                         // maximum size of that file, in bytes
)

//go:embed files
var embedded embed.FS

// Source makes the agent image. It implements image.Source.
type Source struct{ builder image.Source }

// New returns a Source that builds with builder, the source of Dockerfiles.
func New(builder image.Source) *Source { return &Source{builder} }

// Resolve implements image.Source. It keeps only the platform and build arguments of the caller's
// spec.
func (s *Source) Resolve(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Spec, []byte, error) {
	temp, err := os.MkdirTemp("", "harvest-agent-")
	if err != nil {
		return spec, nil, tarfs.Explain(err, os.TempDir())
	}
	defer os.RemoveAll(temp)
	if opts.Context, err = writeContext(temp); err != nil {
		return spec, nil, err
	}
	text, err := embedded.ReadFile("files/Dockerfile")
	if err != nil {
		return spec, nil, errors.Wrapf(err, "read the agent image's Dockerfile")
	}
	inner := image.Spec{Dockerfile: string(text), Platform: spec.Platform, Args: spec.Args}
	return s.builder.Resolve(ctx, inner, opts)
}

// Build implements image.Source.
func (s *Source) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions,
	out image.Output) (image.Contents, error) {
	files, err := writeContext(filepath.Join(out.Temp, "context"))
	if err != nil {
		return image.Contents{}, err
	}
	opts.Context = files
	inner := image.Output{Root: out.Root, Temp: filepath.Join(out.Temp, "build")}
	if err := os.Mkdir(inner.Temp, 0o700); err != nil {
		return image.Contents{}, tarfs.Explain(err, out.Temp)
	}
	contents, err := s.builder.Build(ctx, spec, opts, inner)
	if err != nil {
		return image.Contents{}, err
	}
	root := out.Root
	if contents.Root != "" {
		if root, err = os.Open(contents.Root); err != nil {
			return image.Contents{}, tarfs.Explain(err, contents.Root)
		}
		defer root.Close()
	}
	own, err := readParts(root)
	if err != nil {
		return image.Contents{}, err
	}
	contents.Parts, contents.Missing = merge(contents.Parts, own.Parts), merge(contents.Missing, own.Missing)
	return contents, nil
}

// writeContext writes the build context below dir, which it creates, and returns its path.
func writeContext(dir string) (string, error) {
	generated, err := configurations()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "files")
	err = fs.WalkDir(embedded, "files", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(filepath.Dir(dir), name)
		if d.IsDir() {
			return errors.Join(os.MkdirAll(to, 0o755), os.Chmod(to, 0o755))
		}
		text, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		return write(to, text)
	})
	for name, text := range generated {
		if err == nil {
			err = write(filepath.Join(dir, name), text)
		}
	}
	return dir, tarfs.Explain(err, dir)
}

// write writes a file with its mode in the image, independent of this process's umask.
func write(name string, text []byte) error {
	return errors.Join(os.WriteFile(name, text, 0o644), os.Chmod(name, 0o644))
}

// configurations returns the context files that are generated from the MCP servers that need no
// key.
func configurations() (map[string][]byte, error) {
	always := mcp.Enabled(mcp.Servers(), func(string) bool { return false })
	open, err := mcp.OpenCodeConfig(always, 0)
	if err != nil {
		return nil, err
	}
	claude, err := mcp.ClaudeConfig(always)
	return map[string][]byte{"app/opencode.json": open, "app/mcp.json": claude}, err
}

// said is the build's record of its parts.
type said struct {
	Parts   []image.Part `json:"parts"`
	Missing []image.Part `json:"missing"`
}

func readParts(root *os.File) (said, error) {
	r, err := rootfs.OpenReader(root)
	if err != nil {
		return said{}, errors.Wrapf(err, "read the agent image")
	}
	_, content, err := r.Open(partsFile)
	if err != nil {
		return said{}, errors.Wrapf(err, "the agent image has no %s", partsFile)
	}
	return decodeParts(content)
}

func decodeParts(r io.Reader) (s said, err error) {
	text, err := io.ReadAll(io.LimitReader(r, maxParts))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, errors.Wrapf(err, "read %s of the agent image", partsFile)
}

// merge returns the parts of both lists. For parts of the same name, the one in own wins.
func merge(base, own []image.Part) []image.Part {
	byName := map[string]image.Part{}
	for _, p := range own {
		byName[p.Name] = p
	}
	all := []image.Part{}
	for _, p := range base {
		if q, ok := byName[p.Name]; ok {
			p = q
			delete(byName, p.Name)
		}
		all = append(all, p)
	}
	for _, p := range own {
		if _, ok := byName[p.Name]; ok {
			all = append(all, p)
		}
	}
	return all
}
