package sandbox

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
)

const (
	python  = "python3"
	maxCode = 64 << 20
	// Code up to this size is an argument, which the kernel bounds; more is a file in the sandbox, which stays there.
	maxInline = 64 << 10
)

// CheckCode returns Invalid unless code is text that Python can read.
func CheckCode(code string) error {
	switch {
	case strings.TrimSpace(code) == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "there is no code to run"), "give some Python code, such as print(6*7)")
	case len(code) > maxCode:
		return errors.Remedy(errors.Newf(errors.Invalid, "the code has %d bytes, %d are allowed", len(code), maxCode), "put data into a file or a volume")
	case strings.ContainsRune(code, 0) || !utf8.ValidString(code):
		return errors.Remedy(errors.Newf(errors.Invalid, "the code is not text but binary data"), "give Python source in UTF-8; to run a program, copy it into a sandbox and name it as the command")
	}
	return nil
}

// ExecCode is Exec for Python code: req.Args are what the code finds behind sys.argv[0], and its standard input is free for the
// code to read.
func (f *Fleet) ExecCode(ctx context.Context, account, ref, code string, req ExecRequest) (*Execution, error) {
	if err := CheckCode(code); err != nil {
		return nil, errors.Stage(err, "validate")
	}
	if len(code) <= maxInline {
		req.Args = append([]string{python, "-c", code}, req.Args...)
		return f.exec(ctx, account, ref, req, nil)
	}
	dir := "/tmp/harvest-" + strings.ToLower(ulid.Make().String())
	req.Args = append([]string{python, path.Join(dir, "main.py")}, req.Args...)
	return f.exec(ctx, account, ref, req, func(box engine.Sandbox) error {
		return box.CopyIn(ctx, dir, archive("main.py", code))
	})
}

// archive returns a tar stream of one file.
func archive(name, content string) io.Reader {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Now()})
		if err == nil {
			_, err = io.WriteString(t, content)
		}
		w.CloseWithError(errors.Join(err, t.Close()))
	}()
	return r
}
