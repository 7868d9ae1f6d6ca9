// Package ocilayer writes a writable layer in the form of an OCI layer
// (https://github.com/opencontainers/image-spec/blob/main/layer.md), with holes of files as GNU tar has them.
package ocilayer

import (
	"archive/tar"
	"bufio"
	"cmp"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Names of the OCI layer format, and of archives.
const (
	Whiteout    = ".wh."
	Opaque      = ".wh..wh..opq"
	Attribute   = "SCHILY.xattr."
	OpaqueXattr = Attribute + "trusted.overlay.opaque"
	// Literal marks a file whose own name starts like a whiteout's.
	Literal = "HARVEST.literal"
)

// Segment is a range of a file with content.
type Segment struct{ Start, End int64 }

// Entry is a file of the writable layer.
type Entry struct {
	Name   string // relative to the root, "." for the root
	Kind   byte   // as tar.Header.Typeflag
	Link   string // target
	Size   int64
	Data   []Segment // of a regular file
	Hides  bool      // a directory that hides the image's files in it
	Device [2]int64
}

// Gone reports whether the entry is a deleted file of the image.
func (e *Entry) Gone() bool { return e.Kind == tar.TypeChar && e.Device == [2]int64{} }

// File is an open file of the layer, of any kind.
type File interface {
	// Stat returns the type, the mode, the owners and the time of the last change of the content.
	Stat() (Stat, error)
	// Attributes returns the extended attributes.
	Attributes() (map[string]string, error)
	// Content writes ranges of a regular file.
	Content(to io.Writer, ranges []Segment, buf []byte) error
	Close()
}

// Stat are properties of a file.
type Stat struct {
	Mode     uint32 // permissions, with setuid, setgid and sticky bits
	UID, GID int
	Mtime    time.Time
}

// Settle sorts the entries. It assigns the content of a file with several names to the first of them.
func Settle(all []Entry) {
	slices.SortFunc(all, func(a, b Entry) int { return order(a.Name, b.Name) })
	first := map[string]int{}
	for i := range all {
		e := &all[i]
		target := e.Name
		if e.Kind == tar.TypeLink {
			target = e.Link
		}
		if j, seen := first[target]; seen {
			if e.Kind != tar.TypeLink {
				e.Kind, all[j].Kind = tar.TypeLink, e.Kind
				all[j].Link, all[j].Size, all[j].Data, all[j].Device = e.Link, e.Size, e.Data, e.Device
			}
			e.Link = all[j].Name
		} else if e.Kind != tar.TypeDir {
			first[target] = i
		}
	}
	// All whiteouts are hard links to one file. That file is known only now.
	gone := map[string]bool{}
	for _, e := range all {
		if e.Gone() {
			gone[e.Name] = true
		}
	}
	for i := range all {
		if e := &all[i]; e.Kind == tar.TypeLink && gone[e.Link] {
			e.Kind, e.Device = tar.TypeChar, [2]int64{}
		}
	}
}

// order compares names: the root comes first, a directory before its contents, and these before the directory's
// siblings.
func order(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == ".":
		return -1
	case b == ".":
		return 1
	}
	for i := 0; i < len(a) && i < len(b); i++ {
		if x, y := a[i], b[i]; x != y {
			if x == '/' {
				return -1
			}
			if y == '/' {
				return 1
			}
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}

// Write writes the entries below a directory, and those of the directories that lead to it, as a tar stream. "." is the
// whole layer. The entries must be settled, and open opens the file of a name.
func Write(all []Entry, below string, file io.Writer, open func(name string) (File, error)) error {
	out := bufio.NewWriterSize(file, 256<<10)
	w := &writer{out: out, tw: tar.NewWriter(out), open: open, buf: make([]byte, 256<<10)}
	names := map[string]string{} // the written names of files with several names
	for _, e := range all {
		if !within(e, below) || ours(e.Name) {
			continue
		}
		if e.Kind == tar.TypeLink {
			// Its first name may lie outside of the directory.
			if to, ok := names[e.Link]; ok {
				e.Link = to
			} else {
				names[e.Link] = e.Name
				i, _ := slices.BinarySearchFunc(all, e.Link,
					func(a Entry, name string) int { return order(a.Name, name) })
				name := e.Name
				e = all[i]
				e.Name = name
			}
		} else if e.Kind != tar.TypeDir {
			names[e.Name] = e.Name
		}
		if err := w.entry(e); err != nil {
			return errors.Wrapf(err, "write %.200q", e.Name)
		}
	}
	if err := w.tw.Close(); err != nil {
		return errors.Wrapf(err, "end the layer")
	}
	return errors.Wrapf(out.Flush(), "end the layer")
}

// ours reports whether the keeper writes this file in every sandbox. Such files contain data of one sandbox:
// its name, network and mounts.
func ours(name string) bool {
	switch name {
	case "etc/hosts", "etc/resolv.conf", "etc/hostname", "etc/machine-id", "etc/mtab":
		return true
	}
	return strings.HasPrefix(name, "etc/.harvest-")
}

// within reports whether e must be written: dir itself, files below it, and the directories that lead to it.
func within(e Entry, dir string) bool {
	if dir == "." || e.Name == dir || strings.HasPrefix(e.Name, dir+"/") {
		return true
	}
	return e.Kind == tar.TypeDir && (e.Name == "." || strings.HasPrefix(dir, e.Name+"/"))
}

// writer writes entries in the form of an OCI layer.
type writer struct {
	out  *bufio.Writer
	tw   *tar.Writer
	open func(name string) (File, error)
	buf  []byte
}

func (w *writer) entry(e Entry) error {
	dir, base := path.Split(e.Name)
	if e.Gone() {
		return w.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + Whiteout + base, Format: tar.FormatPAX,
			ModTime: time.Unix(0, 0)})
	}
	o, err := w.open(e.Name)
	if err != nil {
		return err
	}
	defer o.Close()
	st, err := o.Stat()
	if err != nil {
		return errors.Wrapf(err, "look at it")
	}
	hdr := &tar.Header{Typeflag: e.Kind, Name: e.Name, Mode: int64(st.Mode & 0o7777), Uid: st.UID,
		Gid: st.GID, ModTime: st.Mtime, Format: tar.FormatPAX, PAXRecords: map[string]string{}}
	if strings.HasPrefix(base, Whiteout) {
		hdr.PAXRecords[Literal] = "1"
	}
	if e.Kind == tar.TypeLink {
		hdr.Linkname = e.Link
		return w.tw.WriteHeader(hdr)
	}
	attributes, err := o.Attributes()
	if err != nil {
		return err
	}
	for key, value := range attributes {
		if key != "" && value != "" && !strings.Contains(key, "=") {
			hdr.PAXRecords[Attribute+key] = value
		}
	}
	switch e.Kind {
	case tar.TypeDir:
		hdr.Name += "/"
	case tar.TypeSymlink:
		hdr.Linkname = e.Link
	case tar.TypeChar, tar.TypeBlock:
		hdr.Devmajor, hdr.Devminor = e.Device[0], e.Device[1]
	case tar.TypeReg:
		return w.file(hdr, e, o)
	}
	if err := w.tw.WriteHeader(hdr); err != nil {
		return err
	}
	if e.Hides {
		return w.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(e.Name, Opaque),
			Format: tar.FormatPAX, ModTime: time.Unix(0, 0)})
	}
	return nil
}

// file writes a regular file.
func (w *writer) file(hdr *tar.Header, e Entry, o File) error {
	hdr.Size = e.Size
	if sparse(e) {
		return w.sparse(hdr, e, o)
	}
	if err := w.tw.WriteHeader(hdr); err != nil {
		return err
	}
	return o.Content(w.tw, []Segment{{0, e.Size}}, w.buf)
}
