package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
)

// tarball writes a compressed tar archive. Its headers have no owner and no time but that of the commit.
func (p *packing) tarball(name string, entries []entry) error {
	return p.file(name, func(w io.Writer) error {
		zipped, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		if err := p.tar(zipped, entries); err != nil {
			return err
		}
		return zipped.Close()
	})
}

// tar writes a tar stream. Names that end with a slash are directories.
func (p *packing) tar(w io.Writer, entries []entry) error {
	archive := tar.NewWriter(w)
	for _, e := range entries {
		data, err := e.read()
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(data)), ModTime: p.time(),
			Mode: int64(e.mode.Perm()), Format: tar.FormatUSTAR}
		if e.mode&fs.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		if e.mode.IsDir() {
			header.Typeflag = tar.TypeDir
		}
		if err := archive.WriteHeader(header); err != nil {
			return errors.Wrapf(err, "write %s", e.name)
		}
		if _, err := archive.Write(data); err != nil {
			return errors.Wrapf(err, "write %s", e.name)
		}
	}
	return errors.Wrapf(archive.Close(), "end the archive")
}

func (p *packing) zip(name string, entries []entry) error {
	return p.file(name, func(w io.Writer) error {
		archive := zip.NewWriter(w)
		for _, e := range entries {
			data, err := e.read()
			if err != nil {
				return err
			}
			header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: p.time()}
			header.SetMode(e.mode)
			f, err := archive.CreateHeader(header)
			if err != nil {
				return err
			}
			if _, err := f.Write(data); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

// file creates a file of the release.
func (p *packing) file(name string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(p.out, name))
	if err != nil {
		return errors.Wrapf(err, "create %s", name)
	}
	return errors.Wrapf(errors.Join(write(f), f.Close()), "write %s", name)
}
