package dockerfile

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/image/dockerfile/plan"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// maxFetch is the maximum size of a file that ADD downloads.
const maxFetch = 8 << 30

// maxTrailer is the maximum output of curl after a file: one header line, which curl limits to 100
// KiB.
const maxTrailer = 128 << 10

// prepareFetch prepares the download of a file.
func (x *executor) prepareFetch(v *plan.Vertex) *work {
	source := v.Op.GetSource()
	sum, name := source.Attrs[pb.AttrHTTPChecksum], source.Attrs[pb.AttrHTTPFilename]
	return &work{x.key("fetch", source.Identifier, sum, name), func(ctx context.Context, out *os.File) error {
		f, err := x.fetch(ctx, source.Identifier, sum, v.Title)
		if err != nil {
			return err
		}
		l := files.NewLayer(files.NewTree(), x.temp)
		l.Epoch = x.plan.Epoch
		if err := l.Put(path.Join("/", cmp.Or(name, "__unnamed__")), f); err != nil {
			return err
		}
		return l.Write(out)
	}}
}

// fetch downloads a file in a separate machine, so that it reaches only the addresses that
// sandboxes reach.
func (x *executor) fetch(ctx context.Context, url, sum, title string) (*files.File, error) {
	base, err := x.images.Build(ctx, image.Spec{Base: "base"}, image.BuildOptions{})
	if err != nil {
		return nil, errors.Wrapf(err, "prepare the machine that downloads")
	}
	m, err := x.runner.Start(ctx, Setup{Image: base.ID, Network: "default", Title: title})
	if err != nil {
		return nil, errors.Wrapf(err, "start the machine that downloads")
	}
	temp, err := os.CreateTemp(x.temp, "add-*")
	if err != nil {
		return nil, errors.Join(tarfs.Explain(err, "a download"), m.Close(context.WithoutCancel(ctx)))
	}
	x.later(temp.Close)
	w := &limited{w: temp, left: maxFetch + maxTrailer}
	prefix, _, _ := strings.Cut(title, "] ")
	messages := x.log.output(prefix + "] ")
	limit, cancel := context.WithTimeout(ctx, x.source.opts.Run)
	defer cancel()
	code, err := m.Run(limit, Command{
		Args: []string{"curl", "--fail", "--silent", "--show-error", "--location", "--proto", "=http,https",
			"--max-filesize", strconv.Itoa(maxFetch),
			"--write-out", "\n%header{last-modified}", "--", url},
		Dir: "/", Env: map[string]string{}, Stdout: w, Stderr: messages,
	})
	err = errors.Join(err, m.Close(context.WithoutCancel(ctx)))
	switch tail := messages.last(); {
	case err != nil:
		return nil, errors.Wrapf(err, "download a file")
	case w.full:
		return nil, errors.Newf(errors.Exhausted, "%.200q has more than %d bytes", url, int64(maxFetch))
	case code != 0:
		return nil, errors.Remedy(errors.Newf(errors.Unavailable, "%.200q cannot be downloaded: %s", url,
			files.Clip(tail)), "check that sandboxes may reach this address")
	}
	size, mtime, err := splitTrailer(temp, maxFetch+maxTrailer-w.left)
	if err != nil {
		return nil, err
	}
	if size > maxFetch {
		return nil, errors.Newf(errors.Exhausted, "%.200q has more than %d bytes", url, int64(maxFetch))
	}
	f := files.NewSection(temp, size, 0o600, mtime)
	got, err := f.ContentDigest()
	if err == nil && sum != "" && "sha256:"+got != sum {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%.200q has the checksum sha256:%s, not %s", url, got, sum),
			"find out why the file has changed; if it is correct, update --checksum")
	}
	return f, err
}

// splitTrailer finds the line with the Last-Modified header that curl wrote after a download of
// size bytes. It returns the size without that line. The time is zero if the header is missing or
// invalid, or in 1970.
func splitTrailer(r io.ReaderAt, size int64) (int64, time.Time, error) {
	tail := make([]byte, min(size, maxTrailer))
	if _, err := r.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return 0, time.Time{}, errors.Wrapf(err, "read a download")
	}
	i := bytes.LastIndexByte(tail, '\n')
	if i < 0 {
		return 0, time.Time{}, errors.Errorf("curl has not written the header Last-Modified after %d bytes", size)
	}
	mtime, err := http.ParseTime(strings.TrimSpace(string(tail[i+1:])))
	if err != nil || mtime.Unix() <= 0 {
		mtime = time.Time{}
	}
	return size - int64(len(tail)-i), mtime, nil
}

// limited writes up to a limit. It drops further data and sets full.
type limited struct {
	w    io.Writer
	left int64
	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		l.full = true
		return 0, io.ErrShortWrite
	}
	l.left -= int64(len(p))
	return l.w.Write(p)
}
