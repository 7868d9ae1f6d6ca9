// Package files serves single files in sandboxes: read, write, list, move, watch.
package files

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Service serves the routes for single files in sandboxes.
type Service struct {
	edge.Settings
	Fleet *fleet.Fleet

	changing fileLocks // files that requests are changing
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	const read, write = account.Read, account.Write
	return []edge.Route{
		{Method: "GET", Path: api.SandboxFiles, Handle: s.readFile, Scope: read,
			Summary: "Read a file, or ranges of it", Query: edge.QueryPath, RawOut: "application/octet-stream",
			Status: 200},
		{Method: "PUT", Path: api.SandboxFiles, Handle: s.writeFile, Scope: write,
			Summary: "Write a file atomically, of up to 5 GiB. Missing directories are created. If-Match and " +
				"If-None-Match are honoured (412)",
			Query: edge.QueryPath + "; mode: permissions in octal, such as 755", RawIn: "application/octet-stream",
			Out: api.File{}, Status: 200},
		{Method: "DELETE", Path: api.SandboxFiles, Handle: s.removeFile, Scope: write,
			Summary: "Remove a file or an empty directory. If-Match is honoured (412)",
			Query:   edge.QueryPath + "; recursive: remove a directory with its contents", Status: 204},
		{Method: "GET", Path: api.FilesList, Handle: s.listFiles, Scope: read, Summary: "List a directory by name",
			Query: edge.QueryPath + "; " + edge.QueryPage, Out: api.List[api.File]{}, Status: 200},
		{Method: "GET", Path: api.FilesStat, Handle: s.statFile, Scope: read, Summary: "Get the metadata of a file",
			Query: edge.QueryPath + "; follow: follow a symbolic link", Out: api.File{}, Status: 200},
		{Method: "GET", Path: api.FilesWatch, Handle: s.watchFiles, Scope: read,
			Summary: "Watch files for changes, as events. Changes by other sandboxes on a shared volume are not " +
				"reported",
			Query: edge.QueryPath + "; recursive: also watch directories below it", Status: 200,
			Events: api.EventFile + ", each a FileChange"},
		{Method: "POST", Path: api.FilesMove, Handle: s.moveFile, Scope: write,
			Summary: "Move or rename a file or directory", In: api.MoveRequest{}, Out: api.File{}, Status: 200},
		{Method: "POST", Path: api.FilesMkdir, Handle: s.makeDirectory, Scope: write, Summary: "Create a directory",
			In: api.MkdirRequest{}, Out: api.File{}, Status: 201},
	}
}

// files runs a request in the sandbox that r names.
func (s *Service) files(ctx context.Context, r *http.Request, req tarfs.Request, w io.Writer) error {
	err := s.Fleet.Files(ctx, edge.AccountOf(ctx), r.PathValue("id"), req, w)
	if kind := errors.KindOf(err); kind == errors.NotFound || kind == errors.Invalid {
		err = errors.Remedy(err, "check the path: list the directory above it")
	}
	return err
}

// stat returns the entry of a file.
func (s *Service) stat(r *http.Request, name string, follow bool) (tarfs.Entry, error) {
	var b bytes.Buffer
	if err := s.files(r.Context(), r, tarfs.Request{Op: tarfs.OpStat, Path: name, Follow: follow}, &b); err != nil {
		return tarfs.Entry{}, err
	}
	var e tarfs.Entry
	if err := json.Unmarshal(b.Bytes(), &e); err != nil {
		return e, errors.Wrapf(err, "parse a file's metadata from a sandbox")
	}
	if !path.IsAbs(e.Path) { // from an engine whose sandboxes have separate root directories
		e.Path = path.Clean(name)
	}
	return e, nil
}

func (s *Service) statFile(w http.ResponseWriter, r *http.Request) error {
	follow, err := edge.Flag(r, "follow")
	if err != nil {
		return err
	}
	return s.showFile(w, r, http.StatusOK, r.URL.Query().Get("path"), follow)
}

// showFile responds with the metadata of a file.
func (s *Service) showFile(w http.ResponseWriter, r *http.Request, status int, name string, follow bool) error {
	e, err := s.stat(r, name, follow)
	if err != nil {
		return err
	}
	if !follow {
		e.Path = path.Clean(name)
	}
	if tag := etag(e); tag != "" && e.Path == path.Clean(name) {
		w.Header().Set("ETag", tag)
	}
	return edge.Respond(w, status, fileOut(e))
}

func (s *Service) listFiles(w http.ResponseWriter, r *http.Request) error {
	var b bytes.Buffer
	if err := s.files(r.Context(), r, tarfs.Request{Op: tarfs.OpList, Path: r.URL.Query().Get("path")},
		&b); err != nil {
		return err
	}
	var all []tarfs.Entry
	for lines := json.NewDecoder(&b); ; {
		var e tarfs.Entry
		err := lines.Decode(&e)
		if err == io.EOF {
			break
		}
		if err != nil {
			return errors.Wrapf(err, "parse a directory listing from a sandbox")
		}
		all = append(all, e)
	}
	return edge.Paged(s.Settings, w, r, all, false, func(e tarfs.Entry) string { return e.Name }, fileOut)
}

func (s *Service) removeFile(w http.ResponseWriter, r *http.Request) error {
	recursive, err := edge.Flag(r, "recursive")
	if err != nil {
		return err
	}
	name := r.URL.Query().Get("path")
	err = s.changeFile(r, name, func() error {
		if err := s.checkVersion(r, name, false); err != nil {
			return err
		}
		return s.files(r.Context(), r, tarfs.Request{Op: tarfs.OpRemove, Path: name, Recursive: recursive}, io.Discard)
	})
	return edge.NoContent(w, err)
}

func (s *Service) moveFile(w http.ResponseWriter, r *http.Request) error {
	var req api.MoveRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	err := s.changeFile(r, req.To, func() error {
		return s.files(r.Context(), r, tarfs.Request{Op: tarfs.OpMove, Path: req.From, To: req.To,
			Overwrite: req.Overwrite}, io.Discard)
	})
	if err != nil {
		return err
	}
	return s.showFile(w, r, http.StatusOK, req.To, false)
}

func (s *Service) makeDirectory(w http.ResponseWriter, r *http.Request) error {
	var req api.MkdirRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if err := s.files(r.Context(), r, tarfs.Request{Op: tarfs.OpMkdir, Path: req.Path, Parents: req.Parents},
		io.Discard); err != nil {
		return err
	}
	return s.showFile(w, r, http.StatusCreated, req.Path, false)
}

// watchFiles sends changes until the client disconnects. Errors before the first change are ordinary responses.
func (s *Service) watchFiles(w http.ResponseWriter, r *http.Request) error {
	recursive, err := edge.Flag(r, "recursive")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.Stopping, cancel)()
	lines, tell := io.Pipe()
	defer lines.Close()
	go func() {
		err := s.files(ctx, r, tarfs.Request{Op: tarfs.OpWatch, Path: r.URL.Query().Get("path"), Recursive: recursive},
			tell)
		tell.CloseWithError(err)
	}()
	read := bufio.NewScanner(lines)
	if !read.Scan() {
		if err := read.Err(); err != nil {
			return err
		}
		return errors.Errorf("the watch ended before its start")
	}
	ev := s.NewEvents(w)
	defer ev.Close()
	logf.Infof(ctx, "watching files of %s", r.PathValue("id"))
	for ok := true; ok; ok = read.Scan() {
		var c tarfs.Change
		if err := json.Unmarshal(read.Bytes(), &c); err == nil {
			ev.Send(api.EventFile, api.FileChange{Kind: string(c.Kind), Path: c.Path})
		}
	}
	if err := read.Err(); err != nil && ctx.Err() == nil {
		ev.Send(api.EventProblem, edge.Problem(r.Context(), err))
	}
	return nil
}

// readFile responds with a file, or with the requested ranges of it. Browsers never render it as a page, since
// content of sandboxes is untrusted.
func (s *Service) readFile(w http.ResponseWriter, r *http.Request) error {
	name := r.URL.Query().Get("path")
	e, err := s.stat(r, name, true)
	if err != nil {
		return err
	}
	if kindOf(e.Mode) != "file" {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.200q: is %s", name, described(e.Mode)),
			"list a directory, or copy it as an archive; use a command to read other kinds")
	}
	content := &fileReader{ctx: r.Context(), size: e.Size, open: func() (io.ReadCloser, error) {
		return s.Fleet.CopyOut(r.Context(), edge.Account(r), r.PathValue("id"), e.Path)
	}}
	defer content.Close()
	h := w.Header()
	tag, modified := etag(e), e.Modified
	if pseudo(e) {
		if err := content.measure(); err != nil {
			return err
		}
		if content.size != e.Size { // neither its mtime nor its version shows when it changes
			tag, modified = "", time.Time{}
		}
	}
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("Content-Security-Policy", "sandbox")
	if tag != "" {
		h.Set("ETag", tag)
	}
	http.ServeContent(w, r, "", modified, content)
	if content.err != nil {
		return errors.Wrapf(content.err, "send a file")
	}
	return nil
}

// fileReader reads a file of a sandbox from any offset. It discards the data before the offset, since a sandbox can
// only send files from their beginning.
type fileReader struct {
	ctx    context.Context
	size   int64
	open   func() (io.ReadCloser, error)
	stream io.ReadCloser // nil before the first Read after Seek
	tar    *tar.Reader
	at     int64 // offset of the next Read
	err    error // error of the sandbox, if any
}

// Seek implements io.Seeker for http.ServeContent, which uses it to determine the size.
func (f *fileReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return 0, errors.Errorf("negative offset")
	}
	if offset != f.at {
		f.Close()
	}
	f.at = offset
	return offset, nil
}

// Read returns an error, which is kept in err, if the file became shorter meanwhile.
func (f *fileReader) Read(p []byte) (int, error) {
	if f.at >= f.size {
		return 0, io.EOF
	}
	if f.tar == nil {
		if f.err = f.begin(); f.err != nil {
			return 0, f.err
		}
	}
	n, err := f.tar.Read(p[:min(int64(len(p)), f.size-f.at)])
	f.at += int64(n)
	if err == io.EOF && f.at < f.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}

// pseudo reports whether a file's size may not match its content.
func pseudo(e tarfs.Entry) bool {
	return e.Size == 0 || strings.HasPrefix(e.Path, "/proc/") || strings.HasPrefix(e.Path, "/sys/")
}

// measure sets size to the number of readable bytes.
func (f *fileReader) measure() error {
	stream, err := f.open()
	if err != nil {
		return err
	}
	f.stream, f.tar = stream, tar.NewReader(stream)
	hdr, err := f.tar.Next()
	if err != nil {
		return errors.Wrapf(err, "read a file's header")
	}
	f.size = hdr.Size
	return nil
}

func (f *fileReader) begin() error {
	stream, err := f.open()
	if err != nil {
		return err
	}
	f.stream, f.tar = stream, tar.NewReader(stream)
	if _, err := f.tar.Next(); err != nil {
		return errors.Wrapf(err, "read a file's header")
	}
	_, err = io.CopyN(io.Discard, f.tar, f.at)
	return errors.Wrapf(err, "seek in a file")
}

// Close stops reading. It is idempotent.
func (f *fileReader) Close() error {
	if f.stream != nil {
		_ = f.stream.Close() // the wanted data was read
	}
	f.stream, f.tar = nil, nil
	return nil
}

// writeFile writes a file under a temporary name beside it, and renames it when it is complete, so that readers never
// see a partial file. The new file has the owner of the old one, or else that of its directory.
func (s *Service) writeFile(w http.ResponseWriter, r *http.Request) error {
	name := r.URL.Query().Get("path")
	switch {
	case r.ContentLength < 0:
		return edge.WithStatus(errors.Remedy(errors.Newf(errors.Invalid, "unknown size of the file"),
			"send the Content-Length header"), http.StatusLengthRequired)
	case r.ContentLength > api.MaxFile:
		return edge.WithStatus(errors.Remedy(errors.Newf(errors.Invalid,
			"the file has %d bytes, more than the maximum of %d", r.ContentLength, int64(api.MaxFile)),
			"copy it onto a volume in parts"), http.StatusRequestEntityTooLarge)
	case !path.IsAbs(name) || path.Clean(name) == "/" || name[len(name)-1] == '/':
		return errors.Remedy(errors.Newf(errors.Invalid, "%.200q: not the path of a file in the sandbox", name),
			"give an absolute path, such as /workspace/file")
	}
	name = path.Clean(name)
	hdr := &tar.Header{Typeflag: tar.TypeReg, Size: r.ContentLength, Mode: 0o644, Format: tar.FormatPAX}
	before, err := s.stat(r, name, true)
	if e := precondition(r, before, err); e != nil {
		return e // before the content is sent
	}
	switch {
	case err == nil && kindOf(before.Mode) != "file":
		return errors.Remedy(errors.Newf(errors.Conflict, "%.200q: is %s", name, described(before.Mode)),
			"give the path of a file")
	case err == nil:
		name = before.Path // the target, if it is a link
		hdr.Mode, hdr.Uid, hdr.Gid = int64(before.Mode&0o7777), before.UID, before.GID
	case errors.KindOf(err) != errors.NotFound:
		return err
	default:
		if dir, e := s.stat(r, path.Dir(name), true); e == nil {
			hdr.Uid, hdr.Gid = dir.UID, dir.GID
		} else if _, e := s.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id")); e != nil {
			// The sandbox does not exist.
			return e
		}
	}
	if text := r.URL.Query().Get("mode"); text != "" {
		mode, err := strconv.ParseUint(text, 8, 12)
		if err != nil {
			return errors.Remedy(errors.Newf(errors.Invalid, "invalid ?mode=: %.20q", text),
				"give an octal number, such as 644 or 755")
		}
		hdr.Mode = int64(mode)
	}
	if err := s.upload(r, name, hdr); err != nil {
		return err
	}
	return s.showFile(w, r, http.StatusOK, name, false)
}

func (s *Service) upload(r *http.Request, name string, hdr *tar.Header) error {
	ctx, id := r.Context(), r.PathValue("id")
	hdr.Name = tarfs.TemporaryName()
	temp := path.Join(path.Dir(name), hdr.Name)
	archive, fill := io.Pipe()
	go func() {
		out := tar.NewWriter(fill)
		hdr.ModTime = time.Now()
		err := out.WriteHeader(hdr)
		if err == nil {
			_, err = io.Copy(out, r.Body)
			err = edge.BrokeOff(err, "the request")
		}
		if err == nil {
			err = out.Close()
		}
		fill.CloseWithError(err)
	}()
	err := s.Fleet.CopyIn(ctx, edge.AccountOf(ctx), id, path.Dir(name), archive)
	archive.Close()
	if err == nil {
		err = s.changeFile(r, name, func() error {
			if err := s.checkVersion(r, name, true); err != nil {
				return err
			}
			return s.files(ctx, r, tarfs.Request{Op: tarfs.OpMove, Path: temp, To: name, Overwrite: true}, io.Discard)
		})
	}
	if err != nil {
		gone := context.WithoutCancel(ctx)
		if e := s.Fleet.Files(gone, edge.AccountOf(ctx), id, tarfs.Request{Op: tarfs.OpRemove, Path: temp},
			io.Discard); e != nil && errors.KindOf(e) != errors.NotFound {
			logf.Warnf(ctx, "remove a partial file: %v", e)
		}
	}
	return err
}

// kindOf returns the kind of a file with this mode of struct stat.
func kindOf(mode uint32) string {
	switch mode & 0o170000 {
	case 0o100000:
		return "file"
	case 0o040000:
		return "directory"
	case 0o120000:
		return "symlink"
	}
	return "other"
}

// described describes a file that is not a regular one.
func described(mode uint32) string {
	if kind := kindOf(mode); kind != "other" {
		return "a " + kind
	}
	return "neither a file nor a directory"
}

func fileOut(e tarfs.Entry) api.File {
	return api.File{
		Name: e.Name, Path: e.Path, Kind: kindOf(e.Mode), Mode: e.Mode & uint32(0o170000|0o7000|fs.ModePerm),
		Size: e.Size, Modified: e.Modified.UTC(), Link: e.Link, UID: e.UID, GID: e.GID,
		ETag: etag(e),
	}
}
