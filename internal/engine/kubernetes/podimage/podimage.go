// Package podimage makes images of containers that contain programs only, such as that of a sandbox's pod.
package podimage

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Dir is the directory of the programs of a sandbox's pod.
const Dir = "harvest"

// File is a file of an image.
type File struct {
	Name string // in the image, without a slash at the beginning; its directories are made
	Path string // of a program on this machine; "" for Data
	Data []byte
}

// Programs returns the files of a sandbox's pod, whose programs are in a directory of this machine. The first one is
// the pod's first process.
func Programs(dir string) []File {
	var files []File
	for _, program := range []string{"pod", "keeper", "sentry", "tools"} {
		files = append(files, File{Name: path.Join(Dir, program), Path: path.Join(dir, program)})
	}
	return files
}

// Build returns an image of the files, for this machine's architecture. Its entry point is the first file. The same
// files give the same image.
func Build(files []File) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		var archive bytes.Buffer
		if err := pack(&archive, files); err != nil {
			return nil, err
		}
		return io.NopCloser(&archive), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, errors.Wrapf(err, "make the layer of an image")
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer)
	if err != nil {
		return nil, errors.Wrapf(err, "make an image")
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, errors.Wrapf(err, "configure an image")
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config.Entrypoint = []string{"/" + files[0].Name}
	img, err = mutate.ConfigFile(img, config)
	return img, errors.Wrapf(err, "configure an image")
}

// Write writes an archive of an image of the files, as docker save does.
func Write(w io.Writer, tag string, files []File) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return errors.Explainf(err, errors.Invalid, "%q is not the name of an image", tag)
	}
	img, err := Build(files)
	if err != nil {
		return err
	}
	return errors.Wrapf(tarball.Write(ref, img, w), "write an image")
}

// pack writes the layer: the files, their directories, and /tmp.
func pack(w io.Writer, files []File) error {
	archive := tar.NewWriter(w)
	dirs := []string{"tmp"}
	for _, f := range files {
		for dir := path.Dir(f.Name); dir != "."; dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		mode := int64(0o755)
		if dir == "tmp" {
			mode = 0o1777
		}
		header := &tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimSuffix(dir, "/") + "/", Mode: mode,
			ModTime: time.Unix(0, 0)}
		if err := archive.WriteHeader(header); err != nil {
			return errors.Wrapf(err, "write a layer")
		}
	}
	for _, f := range files {
		if err := packFile(archive, f); err != nil {
			return err
		}
	}
	return errors.Wrapf(archive.Close(), "write a layer")
}

func packFile(archive *tar.Writer, f File) error {
	if f.Path == "" {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o644, Size: int64(len(f.Data)),
			ModTime: time.Unix(0, 0)}
		if err := archive.WriteHeader(header); err != nil {
			return errors.Wrapf(err, "write a layer")
		}
		_, err := archive.Write(f.Data)
		return errors.Wrapf(err, "write a layer")
	}
	program, err := os.Open(f.Path)
	if err != nil {
		return errors.Remedy(errors.Wrapf(err, "open a program"), "build the programs first: make build")
	}
	defer program.Close()
	info, err := program.Stat()
	if err != nil {
		return errors.Wrapf(err, "look at a program")
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o755, Size: info.Size(), ModTime: time.Unix(0, 0)}
	if err := archive.WriteHeader(header); err != nil {
		return errors.Wrapf(err, "write a layer")
	}
	_, err = io.Copy(archive, program)
	return errors.Wrapf(err, "write a layer")
}
