package guest

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// Rename gives the main container, which was restored from a checkpoint, another host name. Programs that have looked
// up the earlier name still find it in /etc/hosts. The other lines of the file stay, and so does an /etc/hostname that
// the user has changed.
func (g *Guest) Rename(hostname string) error {
	was := g.Hostname
	if hostname == "" || hostname == was {
		return nil
	}
	if err := layer.SetHostname(g.Sandbox, g.MainID(), hostname); err != nil {
		return err
	}
	g.Hostname = hostname
	const own = "127.0.1.1\t"
	var changes bytes.Buffer
	w := tar.NewWriter(&changes)
	for _, file := range []struct{ path, old, new string }{
		{"/etc/hosts", own + was, own + hostname + " " + was},
		{"/etc/hostname", was + "\n", hostname + "\n"},
	} {
		b, err := g.ReadFile(file.path)
		if err != nil {
			return err
		}
		text := string(b)
		if i := strings.Index(text, file.old); i < 0 || file.path == "/etc/hostname" && text != file.old {
			continue
		}
		text = strings.Replace(text, file.old, file.new, 1)
		hdr := &tar.Header{Typeflag: tar.TypeReg, Name: file.path[1:], Mode: 0o644, Size: int64(len(text)),
			ModTime: time.Now()}
		if err := w.WriteHeader(hdr); err != nil {
			return errors.Wrapf(err, "write %s", file.path)
		}
		if _, err := io.WriteString(w, text); err != nil {
			return errors.Wrapf(err, "write %s", file.path)
		}
	}
	if err := w.Close(); err != nil {
		return errors.Wrapf(err, "write the files of the host name")
	}
	r, theirs, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "pipe")
	}
	defer r.Close()
	go func() {
		_, _ = changes.WriteTo(theirs) // it fails if gVisor does not read, and then Apply fails, too
		_ = theirs.Close()
	}()
	return layer.Apply(g.Sandbox, g.MainID(), g.mounted, r)
}
