package files

import (
	"archive/tar"
	"cmp"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// merger merges several layers into one.
type merger struct {
	entries map[string]*merged
	targets map[string]int // number of hard links by target
	files   []*os.File
	seq     int
}

// merged is an entry of the result.
type merged struct {
	hdr *tar.Header
	at  content
	seq int
}

// Merge writes layers, lowest first, as one. It returns false if that requires the files below
// them.
func Merge(out io.Writer, layers []string) (ok bool, err error) {
	m := &merger{entries: map[string]*merged{}, targets: map[string]int{}}
	defer func() {
		for _, f := range m.files {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, name := range layers {
		if ok, err := m.add(name); !ok || err != nil {
			return false, err
		}
	}
	tw := tar.NewWriter(out)
	for _, e := range slices.SortedFunc(maps.Values(m.entries),
		func(a, b *merged) int { return cmp.Compare(a.seq, b.seq) }) {
		f := &File{content: e.at}
		if err := writeFile(tw, e.hdr, f); err != nil {
			return false, tarfs.Explain(err, "a layer")
		}
	}
	return true, tarfs.Explain(tw.Close(), "a layer")
}

func (m *merger) add(name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, errors.Wrapf(err, "open a layer")
	}
	m.files = append(m.files, f)
	tr := tar.NewReader(f)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return true, nil
		}
		if err != nil {
			return false, errors.Wrapf(err, "read a layer")
		}
		c, err := at(f, hdr.Size)
		if err != nil {
			return false, err
		}
		if !m.entry(hdr, c) {
			return false, nil
		}
	}
}

// entry adds an entry over the previous ones. It returns false if a hard link would lose its
// target.
func (m *merger) entry(hdr *tar.Header, c content) bool {
	name := strings.Trim(path.Clean("/"+hdr.Name), "/")
	dir, base := path.Dir(name), path.Base(name)
	e := &merged{hdr: hdr, at: c, seq: m.next()}
	switch {
	case base == Opaque:
		if !m.drop(dir, false) {
			return false
		}
	case strings.HasPrefix(base, Whiteout):
		if !m.drop(path.Join(dir, strings.TrimPrefix(base, Whiteout)), true) {
			return false
		}
	case hdr.Typeflag == tar.TypeDir:
		old := m.entries[name]
		if old != nil && old.hdr.Typeflag == tar.TypeDir {
			e.seq = old.seq // before its content
		} else if old != nil && !m.drop(name, true) {
			return false
		}
		gone := path.Join(dir, Whiteout+base)
		if m.entries[gone] != nil || old != nil && old.hdr.Typeflag != tar.TypeDir {
			delete(m.entries, gone)
			mark := path.Join(name, Opaque)
			m.entries[mark] = &merged{hdr: &tar.Header{Typeflag: tar.TypeReg, Name: mark, Mode: 0o600,
				Format: tar.FormatPAX}, seq: m.next()}
		}
	default:
		if !m.drop(name, true) {
			return false
		}
		delete(m.entries, path.Join(dir, Whiteout+base))
		if hdr.Typeflag == tar.TypeLink {
			m.targets[strings.Trim(path.Clean("/"+hdr.Linkname), "/")]++
		}
	}
	m.entries[name] = e
	return true
}

func (m *merger) next() int {
	m.seq++
	return m.seq
}

// drop removes everything below a name, and with own the name itself.
func (m *merger) drop(name string, own bool) bool {
	doomed := []string{}
	if e := m.entries[name]; own && e != nil {
		doomed = append(doomed, name)
	}
	if e := m.entries[name]; e == nil || e.hdr.Typeflag == tar.TypeDir {
		for other := range m.entries {
			if strings.HasPrefix(other, name+"/") {
				doomed = append(doomed, other)
			}
		}
	}
	for _, gone := range doomed {
		if e := m.entries[gone]; e.hdr.Typeflag == tar.TypeLink {
			m.targets[strings.Trim(path.Clean("/"+e.hdr.Linkname), "/")]--
		}
	}
	for _, gone := range doomed {
		if m.targets[gone] > 0 {
			return false
		}
		delete(m.entries, gone)
	}
	return true
}
