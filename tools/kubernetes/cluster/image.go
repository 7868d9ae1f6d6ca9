package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"runtime"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Pause is the image of the first process of each pod, which the node needs before any pod.
const Pause = "harvest.test/pause:1"

// WriteImage writes an archive of an image with one program, as docker save does: Cluster.Import reads it. The program
// becomes /name, and the image's entry point.
func WriteImage(w io.Writer, image, name string, program []byte) error {
	var layer bytes.Buffer
	if err := writeFiles(&layer, file{name, 0o755, program}); err != nil {
		return err
	}
	sum := sha256.Sum256(layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + name}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return errors.Wrapf(err, "encode the configuration of an image")
	}
	manifest, err := json.Marshal([]map[string]any{
		{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return errors.Wrapf(err, "encode the manifest of an image")
	}
	return writeFiles(w, file{"layer.tar", 0o644, layer.Bytes()}, file{"config.json", 0o644, config},
		file{"manifest.json", 0o644, manifest})
}

type file struct {
	name string
	mode int64
	data []byte
}

func writeFiles(w io.Writer, files ...file) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg,
			ModTime: time.Now()}
		if err := archive.WriteHeader(header); err != nil {
			return errors.Wrapf(err, "write an archive")
		}
		if _, err := archive.Write(f.data); err != nil {
			return errors.Wrapf(err, "write an archive")
		}
	}
	return errors.Wrapf(archive.Close(), "write an archive")
}
