package main

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// entry is a file or directory in an archive.
type entry struct {
	name string
	mode fs.FileMode
	path string // of its content; "" if data has it
	data []byte
}

func (e entry) read() ([]byte, error) {
	if e.path == "" {
		return e.data, nil
	}
	data, err := os.ReadFile(e.path)
	return data, errors.Wrapf(err, "read %s", e.name)
}

// packing is one run of the command pack.
type packing struct {
	record

	stage, out string
}

// pack makes all files of a release from a stage. The same stage gives the same files.
func pack(stage, out string) error {
	r, err := readRecord(stage)
	if err != nil {
		return err
	}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return errors.Errorf("directory %s is not empty: remove it first", out)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return errors.Wrapf(err, "make the directory of the release")
	}
	p := &packing{record: r, stage: stage, out: out}
	for _, on := range platforms {
		if err := p.platform(on); err != nil {
			return errors.Wrapf(err, "%s", on)
		}
	}
	if err := p.image(); err != nil {
		return errors.Wrapf(err, "image")
	}
	if err := p.provenance(); err != nil {
		return errors.Wrapf(err, "provenance")
	}
	return p.checksums()
}

// platform makes the archive, its SBOM, and packages.
func (p *packing) platform(on platform) error {
	archive := p.name(on, ".tar.gz")
	if on.OS == "windows" {
		archive = p.name(on, ".zip")
	}
	entries, err := p.archived(on)
	if err != nil {
		return err
	}
	write := p.tarball
	if on.OS == "windows" {
		write = p.zip
	}
	if err := write(archive, entries); err != nil {
		return err
	}
	bom, err := os.ReadFile(filepath.Join(p.stage, "sbom", on.String()+".json"))
	if err != nil {
		return errors.Wrapf(err, "read the SBOM")
	}
	if err := p.create(archive+".sbom.json", bom); err != nil {
		return err
	}
	if !on.server() {
		return nil
	}
	for _, format := range []string{"deb", "rpm"} {
		if err := p.packageFor(on, format); err != nil {
			return errors.Wrapf(err, "%s", format)
		}
	}
	return nil
}

// name is the name of a platform's file in the release.
func (p *packing) name(on platform, end string) string {
	return "harvest_" + p.Version + "_" + on.String() + end
}

func (p *packing) create(name string, data []byte) error {
	return errors.Wrapf(os.WriteFile(filepath.Join(p.out, name), data, 0o644), "write %s", name)
}

// archived lists the content of a platform's archive.
func (p *packing) archived(on platform) ([]entry, error) {
	entries := []entry{{name: on.program(), mode: 0o755, path: filepath.Join(p.stage, on.String(), on.program())}}
	for _, name := range []string{"LICENSE", "README.md"} {
		entries = append(entries, entry{name: name, mode: 0o644, path: filepath.Join(p.stage, name)})
	}
	for _, dir := range []string{"completions", "man"} {
		files, err := os.ReadDir(filepath.Join(p.stage, dir))
		if err != nil {
			return nil, errors.Wrapf(err, "list %s", dir)
		}
		for _, f := range files {
			entries = append(entries, entry{name: dir + "/" + f.Name(), mode: 0o644,
				path: filepath.Join(p.stage, dir, f.Name())})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return entries, nil
}

// artifacts lists the files of the release so far, by name.
func (p *packing) artifacts() ([]string, error) {
	entries, err := os.ReadDir(p.out)
	if err != nil {
		return nil, errors.Wrapf(err, "list the release")
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
