package container

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Building is what an image of a dev container is built from.
type Building struct {
	Images image.Builder
	// Credentials returns those for a registry; nil for none.
	Credentials func(ctx context.Context, registry string) (image.Credential, error)
	Transport   http.RoundTripper // for features
	Default     string            // image, if the description names none

	Files  string // directory of this machine with the files of the repository
	Config string // path of the devcontainer.json below it
	Dir    string // of the repository in sandboxes
	ID     string // identifies the repository
	Temp   string // directory for features, which the caller removes

	// Owned are the secrets of the account, and Passed the names of those for the repository.
	Owned  []secret.Secret
	Passed []string

	Log func(line string) // gets the output of the builds, and a line for each part that is not followed
}

// Build builds the image of a dev container: that of its description, with the features and the user that it wants.
// The image has a link to the repository if the description has it in another directory. Kinds: Invalid for a
// description that is wrong, Unsupported for one that needs Docker Compose, and those of image.Builder.
func Build(ctx context.Context, b Building) (image.Image, error) {
	repository, err := os.OpenRoot(b.Files)
	if err != nil {
		return image.Image{}, errors.Wrapf(err, "open the files of the repository")
	}
	defer repository.Close()
	text, err := read(repository, b.Config)
	if err != nil {
		return image.Image{}, err
	}
	raw, err := devcontainer.Parse(b.Config, text)
	if err != nil {
		return image.Image{}, err
	}
	at := place{Config: b.Config, Repo: b.ID, Dir: b.Dir, Folder: b.Dir, Secrets: shortened(raw.Secrets)}
	values, err := at.variables(nil, b.ID)
	if err == nil {
		at.Folder, err = raw.Folder(values)
	}
	if err == nil {
		at.Folder, err = checkFolder(at.Folder)
	}
	if err != nil {
		return image.Image{}, err
	}
	values.ContainerFolder = at.Folder
	c, err := raw.Substitute(values)
	if err != nil {
		return image.Image{}, err
	}
	for _, n := range c.Notes() {
		b.Log(n.Text)
	}
	for _, text := range at.lacking(nil, b.Owned, b.Passed) {
		b.Log(text)
	}
	base, err := b.base(ctx, repository, c)
	if err != nil {
		return image.Image{}, err
	}
	lock := devcontainer.Lock(nil)
	if text, err := read(repository, c.LockPath()); err == nil {
		if lock, err = devcontainer.ParseLock(c.LockPath(), text); err != nil {
			return image.Image{}, err
		}
	}
	source := devcontainer.Fetcher{Dir: b.Temp, Repository: repository.FS(), Config: b.Config, Transport: b.Transport,
		Credentials: b.Credentials, Lock: lock}
	features, err := devcontainer.Resolve(ctx, c, source.Feature)
	if err != nil {
		return image.Image{}, err
	}
	metadata, err := devcontainer.ParseMetadata(base.Config.Labels[devcontainer.Label])
	if err == nil {
		metadata, err = metadata.With(features, raw)
	}
	if err != nil {
		return image.Image{}, err
	}
	return b.install(ctx, base, at, metadata, features, values)
}

// read reads a file of a repository, which may have any size and type.
func read(repository *os.Root, name string) ([]byte, error) {
	f, err := repository.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // it does not wait for a FIFO
	if err != nil {
		return nil, errors.Explainf(err, errors.NotFound, "%s cannot be read", name)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Newf(errors.Invalid, "%s is not a file", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, devcontainer.MaxBytes+1))
	if err == nil && len(text) > devcontainer.MaxBytes {
		err = errors.Newf(errors.Exhausted, "%s has more than %d bytes", name, devcontainer.MaxBytes)
	}
	return text, errors.Wrapf(err, "read %s", name)
}

// checkFolder returns workspaceFolder without needless parts.
func checkFolder(folder string) (string, error) {
	if !path.IsAbs(folder) || strings.ContainsFunc(folder, unicode.IsControl) {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "workspaceFolder %.200q is not an absolute path", folder),
			"write a path such as /workspaces/name, or leave it out")
	}
	return path.Clean(folder), nil
}

// base builds or finds the image that features are installed in.
func (b Building) base(ctx context.Context, repository *os.Root, c *devcontainer.Config) (image.Image, error) {
	base, err := c.Base()
	if err != nil {
		return image.Image{}, err
	}
	spec := image.Spec{Base: base.Image}
	opts := image.BuildOptions{Credentials: b.Credentials, Log: b.Log}
	switch {
	case base.Dockerfile != "":
		text, err := read(repository, base.Dockerfile)
		if err != nil {
			return image.Image{}, err
		}
		spec = image.Spec{Dockerfile: string(text), Target: base.Target, Args: base.Args}
		if opts.Context, err = b.inside(base.Context); err != nil {
			return image.Image{}, err
		}
	case base.Image == "":
		spec.Base = b.Default
	}
	return b.Images.Build(ctx, spec, opts)
}

// inside returns the path on this machine of a directory of the repository. Its symbolic links may not lead out.
func (b Building) inside(dir string) (string, error) {
	all, err := filepath.EvalSymlinks(b.Files)
	if err != nil {
		return "", errors.Wrapf(err, "find the files of the repository")
	}
	found, err := filepath.EvalSymlinks(filepath.Join(all, filepath.FromSlash(dir)))
	if err != nil {
		return "", errors.Explainf(err, errors.NotFound, "%s, the context of the build in %s, is not there", dir,
			b.Config)
	}
	if found != all && !strings.HasPrefix(found, all+string(filepath.Separator)) {
		return "", errors.Newf(errors.Invalid, "%s, the context of the build in %s, is outside of the repository", dir,
			b.Config)
	}
	return found, nil
}

// install builds the image with features.
func (b Building) install(ctx context.Context, base image.Image, at place, metadata devcontainer.Metadata,
	features []*devcontainer.Feature, values devcontainer.Variables) (image.Image, error) {
	valued, err := metadata.Substitute(values)
	if err != nil {
		return image.Image{}, err
	}
	merged := devcontainer.Merge(valued)
	for _, n := range merged.Notes {
		b.Log(n.Text)
	}
	mark, err := json.Marshal(at)
	if err != nil {
		return image.Image{}, errors.Wrapf(err, "encode a label")
	}
	owner, user := merged.Users(base.Config.User)
	text, files, err := devcontainer.Dockerfile(devcontainer.Installation{Image: base.ID, User: user,
		ContainerUser: owner, RemoteUser: user, Features: features, ContainerEnv: merged.ContainerEnv,
		Metadata: metadata, Labels: map[string]string{label: string(mark)}})
	if err != nil {
		return image.Image{}, err
	}
	for _, f := range files {
		path := filepath.Join(b.Temp, filepath.FromSlash(f.Path))
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(f.Text), 0o644))
		if err != nil {
			return image.Image{}, errors.Wrapf(err, "write the steps of features")
		}
	}
	if at.Folder != at.Dir && !strings.HasPrefix(at.Folder, at.Dir+"/") {
		// The description has the repository there. A directory that exists stays.
		link := devcontainer.ShellQuote(at.Folder)
		text += "USER root\nRUN [ -e " + link + " ] || { mkdir -p " + devcontainer.ShellQuote(filepath.Dir(at.Folder)) +
			" && ln -s " + devcontainer.ShellQuote(at.Dir) + " " + link + "; }\n"
		if user != "" {
			text += "USER " + user + "\n"
		}
	}
	return b.Images.Build(ctx, image.Spec{Dockerfile: text}, image.BuildOptions{Context: b.Temp,
		Credentials: b.Credentials, Log: b.Log})
}
