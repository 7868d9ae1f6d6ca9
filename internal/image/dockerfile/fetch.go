package dockerfile

import (
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

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

// maxFetch is the maximum size of a file that ADD downloads.
const maxFetch = 8 << 30

// maxMessages is the maximum size of curl's messages, which end with a header line. curl limits that to 100 KiB.
const maxMessages = 128 << 10

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
	content := &limited{w: temp, left: maxFetch}
	var messages strings.Builder
	limit, cancel := context.WithTimeout(ctx, x.source.opts.Run)
	defer cancel()
	code, err := m.Run(limit, Command{
		Args: []string{"curl", "--fail", "--silent", "--show-error", "--location", "--proto", "=http,https",
			"--max-filesize", strconv.Itoa(maxFetch),
			"--write-out", "%{stderr}\n%header{last-modified}", "--", url},
		Dir: "/", Env: map[string]string{}, Stdout: content, Stderr: &limited{w: &messages, left: maxMessages},
	})
	err = errors.Join(err, m.Close(context.WithoutCancel(ctx)))
	text := strings.ToValidUTF8(messages.String(), "\uFFFD")
	end := strings.LastIndexByte(text, '\n') + 1
	switch {
	case err != nil:
		return nil, errors.Wrapf(err, "download a file")
	case content.full:
		return nil, errors.Newf(errors.Exhausted, "%.200q has more than %d bytes", url, int64(maxFetch))
	case code != 0:
		return nil, errors.Remedy(errors.Newf(errors.Unavailable, "%.200q cannot be downloaded: %s", url,
			x.log.secrets.Replace(files.Clip(text[:end]))), "check that sandboxes may reach this address")
	}
	mtime, err := http.ParseTime(strings.TrimSpace(text[end:]))
	if err != nil || mtime.Unix() <= 0 { // missing or invalid, or in 1970
		mtime = time.Time{}
	}
	f := files.NewSection(temp, maxFetch-content.left, 0o600, mtime)
	got, err := f.ContentDigest()
	if err == nil && sum != "" && "sha256:"+got != sum {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%.200q has the checksum sha256:%s, not %s", url, got, sum),
			"find out why the file has changed; if it is correct, update --checksum")
	}
	return f, err
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
