package agent

import (
	"archive/tar"
	"bufio"
	"cmp"
	"encoding/binary"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Names of the OCI layer format, and of archives.
const (
	whiteout    = ".wh."
	opaque      = ".wh..wh..opq"
	attribute   = "SCHILY.xattr."
	opaqueXattr = attribute + "trusted.overlay.opaque"
	// literal marks a file whose own name starts like a whiteout's.
	literal = "HARVEST.literal"
)

// segment is a range of a file with content.
type segment struct{ start, end int64 }

// entry is a file of the writable layer.
type entry struct {
	name   string // relative to the root, "." for the root
	kind   byte   // as tar.Header.Typeflag
	link   string // target
	size   int64
	data   []segment // of a regular file
	hides  bool      // a directory that hides the image's files in it
	device [2]int64
}

// gone reports whether the entry is a deleted file of the image.
func (e *entry) gone() bool { return e.kind == tar.TypeChar && e.device == [2]int64{} }

// list returns the files of the writable layer, by name, parents first. The sandbox must be paused.
func (v *view) list() ([]entry, error) {
	upper, err := v.upper()
	if err != nil {
		return nil, err
	}
	defer upper.DecRef(v.ctx)
	r, w := io.Pipe()
	go func() {
		buf := bufio.NewWriterSize(w, 256<<10)
		err := tmpfs.FSCheckpointWrite(v.ctx, upper, buf)
		if err == nil {
			err = buf.Flush()
		}
		_ = w.CloseWithError(err)
	}()
	all, err := parse(r)
	_ = r.CloseWithError(err)
	if err != nil {
		return nil, err
	}
	settle(all)
	return all, nil
}

// settle sorts the entries. It assigns the content of a file with several names to the first of them.
func settle(all []entry) {
	slices.SortFunc(all, func(a, b entry) int { return order(a.name, b.name) })
	first := map[string]int{}
	for i := range all {
		e := &all[i]
		target := e.name
		if e.kind == tar.TypeLink {
			target = e.link
		}
		if j, seen := first[target]; seen {
			if e.kind != tar.TypeLink {
				e.kind, all[j].kind = tar.TypeLink, e.kind
				all[j].link, all[j].size, all[j].data, all[j].device = e.link, e.size, e.data, e.device
			}
			e.link = all[j].name
		} else if e.kind != tar.TypeDir {
			first[target] = i
		}
	}
	// All whiteouts are hard links to one file. That file is known only now.
	gone := map[string]bool{}
	for _, e := range all {
		if e.gone() {
			gone[e.name] = true
		}
	}
	for i := range all {
		if e := &all[i]; e.kind == tar.TypeLink && gone[e.link] {
			e.kind, e.device = tar.TypeChar, [2]int64{}
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

// parse reads gVisor's list of a tmpfs. It is a tar stream in which regular files have, instead of their
// content, their size and the ranges with content.
func parse(r io.Reader) ([]entry, error) {
	var all []entry
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, errors.Wrapf(err, "list the writable layer")
		}
		e := entry{name: path.Clean(hdr.Name), kind: hdr.Typeflag, link: hdr.Linkname,
			device: [2]int64{hdr.Devmajor, hdr.Devminor}}
		switch hdr.Typeflag {
		case tar.TypeReg:
			if e.size, e.data, err = segments(tr, hdr.Size); err != nil {
				return nil, err
			}
		case tar.TypeLink:
			e.link = path.Clean(hdr.Linkname)
		case tar.TypeDir:
			e.hides = hdr.PAXRecords[opaqueXattr] == "y"
		}
		all = append(all, e)
	}
}

// segments reads a regular file of gVisor's list: its size, then three numbers for each range. The third one is
// the range's position in memory.
func segments(r io.Reader, length int64) (int64, []segment, error) {
	const word = 8
	if length < word || (length-word)%(3*word) != 0 {
		return 0, nil, errors.Errorf("a file of gVisor's list has %d bytes", length)
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, errors.Wrapf(err, "list the writable layer")
	}
	size := int64(binary.LittleEndian.Uint64(b))
	var data []segment
	for b = b[word:]; len(b) > 0; b = b[3*word:] {
		s := segment{int64(binary.LittleEndian.Uint64(b)), min(size, int64(binary.LittleEndian.Uint64(b[word:])))}
		switch last := len(data) - 1; {
		case s.start >= s.end:
		case last >= 0 && data[last].end == s.start:
			data[last].end = s.end
		default:
			data = append(data, s)
		}
	}
	return size, data, nil
}

// write writes the layer as a tar stream. The sandbox must be paused.
func (v *view) write(dir string, file io.Writer) error {
	below := "."
	if dir != "" {
		var err error
		if below, err = v.resolve(dir); err != nil {
			return err
		}
	}
	all, err := v.list()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(file, 256<<10)
	w := &writer{v: v, out: out, tw: tar.NewWriter(out)}
	buf := make([]byte, 256<<10)
	w.copy = func(to io.Writer, o opened, ranges []segment) error { return o.content(to, ranges, buf) }
	names := map[string]string{} // the written names of files with several names
	for _, e := range all {
		if !within(e, below) || ours(e.name) {
			continue
		}
		if e.kind == tar.TypeLink {
			// Its first name may lie outside of dir.
			if to, ok := names[e.link]; ok {
				e.link = to
			} else {
				names[e.link] = e.name
				i, _ := slices.BinarySearchFunc(all, e.link,
					func(a entry, name string) int { return order(a.name, name) })
				name := e.name
				e = all[i]
				e.name = name
			}
		} else if e.kind != tar.TypeDir {
			names[e.name] = e.name
		}
		if err := w.entry(e); err != nil {
			return errors.Wrapf(err, "write %.200q", e.name)
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
func within(e entry, dir string) bool {
	if dir == "." || e.name == dir || strings.HasPrefix(e.name, dir+"/") {
		return true
	}
	return e.kind == tar.TypeDir && (e.name == "." || strings.HasPrefix(dir, e.name+"/"))
}

// writer writes entries in the form of an OCI layer.
type writer struct {
	v   *view
	out *bufio.Writer
	tw  *tar.Writer
	// copy writes ranges of a file's content.
	copy func(to io.Writer, o opened, ranges []segment) error
}

func (w *writer) entry(e entry) error {
	dir, base := path.Split(e.name)
	if e.gone() {
		return w.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + base, Format: tar.FormatPAX,
			ModTime: time.Unix(0, 0)})
	}
	o, err := w.v.open(e.name)
	if err != nil {
		return err
	}
	defer o.close()
	st, err := o.stat()
	if err != nil {
		return errors.Wrapf(err, "look at it")
	}
	hdr := &tar.Header{Typeflag: e.kind, Name: e.name, Mode: int64(st.Mode & 0o7777), Uid: int(st.UID),
		Gid:     int(st.GID),
		ModTime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)), Format: tar.FormatPAX, PAXRecords: map[string]string{}}
	if strings.HasPrefix(base, whiteout) {
		hdr.PAXRecords[literal] = "1"
	}
	if e.kind == tar.TypeLink {
		hdr.Linkname = e.link
		return w.tw.WriteHeader(hdr)
	}
	attributes, err := o.attributes()
	if err != nil {
		return err
	}
	for key, value := range attributes {
		if key != "" && value != "" && !strings.Contains(key, "=") {
			hdr.PAXRecords[attribute+key] = value
		}
	}
	switch e.kind {
	case tar.TypeDir:
		hdr.Name += "/"
	case tar.TypeSymlink:
		hdr.Linkname = e.link
	case tar.TypeChar, tar.TypeBlock:
		hdr.Devmajor, hdr.Devminor = e.device[0], e.device[1]
	case tar.TypeReg:
		return w.file(hdr, e, o)
	}
	if err := w.tw.WriteHeader(hdr); err != nil {
		return err
	}
	if e.hides {
		return w.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(e.name, opaque),
			Format: tar.FormatPAX, ModTime: time.Unix(0, 0)})
	}
	return nil
}

// file writes a regular file.
func (w *writer) file(hdr *tar.Header, e entry, o opened) error {
	hdr.Size = e.size
	if sparse(e) {
		return w.sparse(hdr, e, o)
	}
	if err := w.tw.WriteHeader(hdr); err != nil {
		return err
	}
	return w.copy(w.tw, o, []segment{{0, e.size}})
}

// content copies ranges of a regular file.
func (o opened) content(to io.Writer, ranges []segment, buf []byte) error {
	if len(ranges) == 0 || ranges[len(ranges)-1].end == 0 {
		return nil
	}
	v := o.v
	f, err := v.k.VFS().OpenAt(v.ctx, v.creds, o.path(), &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_NOFOLLOW})
	if err != nil {
		return errors.Wrapf(err, "open")
	}
	defer f.DecRef(v.ctx)
	for _, s := range ranges {
		for at := s.start; at < s.end; {
			part := buf[:min(int64(len(buf)), s.end-at)]
			n, err := f.PRead(v.ctx, usermem.BytesIOSequence(part), at, vfs.ReadOptions{})
			if n == 0 {
				return errors.Wrapf(cmp.Or(err, io.ErrUnexpectedEOF), "read at %d of %d", at, s.end)
			}
			if _, err := to.Write(part[:n]); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}
