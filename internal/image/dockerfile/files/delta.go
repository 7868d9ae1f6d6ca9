package files

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// A snapshot of a machine has all changes since its start. The layer of an instruction has only the
// changes of that instruction, and is the difference of two snapshots.

// seen has the properties of an entry of a snapshot that are compared, including times.
type seen struct {
	hdr string
	sum string // of the content
	dir bool
}

// Index is a snapshot without content.
type Index map[string]seen

// Forget makes a directory one that the snapshot does not have.
func (i Index) Forget(dir string) {
	delete(i, dir)
	delete(i, path.Join(dir, Opaque))
}

// describe returns the compared fields of a header.
func describe(hdr *tar.Header) string {
	attributes := ""
	for _, key := range slices.Sorted(maps.Keys(hdr.PAXRecords)) {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			attributes += key + "=" + hdr.PAXRecords[key] + "\x00"
		}
	}
	return fmt.Sprint(hdr.Typeflag, hdr.Mode, hdr.Uid, hdr.Gid, hdr.Size, hdr.ModTime.UnixNano(),
		hdr.Linkname, attributes)
}

// Delta writes the layer between two snapshots. out may be nil if only the index is needed. Paths
// for which hidden is true are omitted.
type Delta struct {
	Out    *os.File
	Before Index
	Hidden func(name string) bool

	after   Index
	emptied map[string]bool // directories whose files in all earlier layers the layer hides
	written map[string]bool
	entries int
}

// Run reads a snapshot and returns its index. It writes the layer to out, which is empty if nothing
// has changed.
func (d *Delta) Run(snapshot io.Reader) (Index, error) {
	d.after, d.written, d.emptied = Index{}, map[string]bool{}, map[string]bool{}
	tr := tarfs.NewReader(snapshot)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		name := strings.Trim(path.Clean("/"+hdr.Name), "/")
		if name == "" || d.Hidden != nil && d.Hidden("/"+name) {
			continue
		}
		hdr.Name = name
		if hdr.Typeflag == tar.TypeDir {
			hdr.Name += "/"
		}
		if err := d.entry(name, hdr, tr); err != nil {
			return nil, err
		}
	}
	if d.Out == nil {
		return d.after, nil
	}
	err := d.removed()
	if err == nil && d.entries > 0 {
		err = tarfs.Explain(tar.NewWriter(d.Out).Close(), "a layer")
	}
	return d.after, err
}

// entry writes an entry, and truncates it again if it is unchanged.
func (d *Delta) entry(name string, hdr *tar.Header, content io.Reader) error {
	now := seen{hdr: describe(hdr), dir: hdr.Typeflag == tar.TypeDir}
	was, known := d.Before[name]
	same := known && was.hdr == now.hdr && !d.inEmptied(name)
	if dir, mark := path.Split(name); mark == Opaque && !known {
		d.emptied[path.Clean(dir)] = true
	}
	if hdr.Typeflag == tar.TypeLink && d.written[strings.Trim(path.Clean("/"+hdr.Linkname), "/")] {
		same = false // the link must follow its file, which is new
	}
	if hdr.Typeflag != tar.TypeReg {
		d.after[name] = now
		if same || d.Out == nil {
			return nil
		}
		return d.write(name, hdr, nil)
	}
	h := sha256.New()
	content = io.TeeReader(content, h)
	start, err := int64(0), error(nil)
	if d.Out == nil {
		_, err = io.Copy(io.Discard, content)
	} else if start, err = d.Out.Seek(0, io.SeekCurrent); err == nil {
		err = d.write(name, hdr, content)
	}
	now.sum = hex.EncodeToString(h.Sum(nil))
	d.after[name] = now
	if err == nil && d.Out != nil && same && now.sum == was.sum {
		d.entries--
		delete(d.written, name)
		if _, err = d.Out.Seek(start, io.SeekStart); err == nil {
			err = d.Out.Truncate(start)
		}
	}
	return tarfs.Explain(err, "a layer")
}

// inEmptied reports whether a file is in a directory that the command made in place of another one. The mark of such a
// directory also hides the files that earlier layers have in it, so the layer must have all of them.
func (d *Delta) inEmptied(name string) bool {
	for dir := path.Dir(name); len(d.emptied) > 0 && dir != "."; dir = path.Dir(dir) {
		if d.emptied[dir] {
			return true
		}
	}
	return false
}

// write writes an entry with its own tar writer, which buffers nothing.
func (d *Delta) write(name string, hdr *tar.Header, content io.Reader) error {
	tw := tar.NewWriter(d.Out)
	hdr.Format = tar.FormatPAX
	hdr.Uname, hdr.Gname, hdr.AccessTime, hdr.ChangeTime = "", "", time.Time{}, time.Time{}
	if err := tw.WriteHeader(hdr); err != nil {
		return errors.Wrapf(err, "write %.200q", name)
	}
	if content != nil {
		if _, err := io.Copy(tw, content); err != nil {
			return err
		}
	}
	d.entries++
	d.written[name] = true
	return tw.Flush()
}

// removed writes whiteouts for entries that are missing since the previous snapshot, since they are
// in an earlier layer.
func (d *Delta) removed() error {
	var gone []string
	for name := range d.Before {
		if _, still := d.after[name]; still || strings.HasPrefix(path.Base(name), Whiteout) || d.hiddenNow(name) ||
			d.Hidden != nil && d.Hidden("/"+name) {
			continue
		}
		gone = append(gone, name)
	}
	slices.Sort(gone)
	for _, name := range gone {
		dir := path.Dir(name)
		if _, also := d.Before[dir]; dir != "." && also {
			if now, still := d.after[dir]; !still || !now.dir {
				continue // the directory itself was removed or replaced
			}
		}
		if err := d.write(name, &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir, Whiteout+path.Base(name)),
			Mode: 0o600}, nil); err != nil {
			return tarfs.Explain(err, "a layer")
		}
	}
	return nil
}

// hiddenNow reports whether the snapshot has a whiteout for name or a directory above it.
func (d *Delta) hiddenNow(name string) bool {
	for ; name != "."; name = path.Dir(name) {
		if _, ok := d.after[path.Join(path.Dir(name), Whiteout+path.Base(name))]; ok {
			return true
		}
	}
	return false
}

// Below returns a function that reports whether a name is at or below any of the paths.
func Below(paths []string) func(string) bool {
	return func(name string) bool {
		for _, p := range paths {
			if name == p || strings.HasPrefix(name, p+"/") || name == path.Join(path.Dir(p), Whiteout+path.Base(p)) {
				return true
			}
		}
		return false
	}
}
