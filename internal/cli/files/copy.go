package files

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

const copyHelp = `SOURCE and TARGET are %[1]s:PATH, a path on this machine, or "-" for a tar stream on standard input
or output. At least one of them is %[1]s:PATH; paths there begin at "/". Write ./a:b for a file of
this machine with a colon in its name. The rules are those of docker cp, in both directions:

  SOURCE              TARGET                     result
  file                does not exist             TARGET is the copy
  file                does not exist, ends in /  error
  file                file                       TARGET is replaced
  file                directory                  TARGET/name-of-SOURCE
  directory           does not exist             TARGET is the copy
  directory           file                       error
  directory           directory                  TARGET/name-of-SOURCE
  directory/.         does not exist             TARGET is the copy
  directory/.         directory                  the files are added to TARGET
  symbolic link       as for a file              the link itself is copied; with -L the file or directory it points to
  link/, link/.       as for a directory         the directory it points to
  any                 symbolic link              the file or directory it points to
  any                 in a missing directory     error
  "-"                 directory                  the tar stream is unpacked in TARGET; anything else is an error
  any                 "-"                        a tar stream of name-of-SOURCE; of directory/. the files alone`

// location is a place with files: this machine, a sandbox or a volume.
type location interface {
	// lstat describes a file, without following a link. NotFound: it does not exist.
	lstat(ctx context.Context, name string) (api.File, error)
	// out returns a tar stream: one entry for a file, or the entries in a directory, with names relative to it.
	out(ctx context.Context, name string, as tarfs.Naming) (archive, error)
	// in unpacks a tar stream in a directory.
	in(ctx context.Context, dir string, from archive) error
	// show formats a path of the location for users.
	show(name string) string
	// mkdir is the command that creates a directory, or "" if there is no such command.
	mkdir(dir string) string
}

// remote splits REF:PATH. Local paths with a colon must begin with "/" or ".".
func remote(arg string) (ref, file string, ok bool) {
	if strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") {
		return "", "", false
	}
	ref, file, ok = strings.Cut(arg, ":")
	return ref, file, ok && ref != ""
}

// copying is one run of cp.
type copying struct {
	in     io.Reader
	out    io.Writer
	follow bool                      // follow links given as SOURCE
	here   here                      // this machine
	noun   string                    // "SANDBOX" or "VOLUME"
	open   func(ref string) location // opens the location of ref
}

// run copies source to target.
func (c *copying) run(ctx context.Context, source, target string) error {
	from, fromPath := c.locate(source)
	to, toPath := c.locate(target)
	if from == nil && to == nil || from == nil && target == "-" || to == nil && source == "-" {
		return errors.Remedy(errors.Newf(errors.Invalid, "neither %q nor %q is %s:PATH", source, target, c.noun),
			"name a path that is not on this machine, such as dev:/tmp")
	}
	if source == "-" {
		return c.unpack(ctx, to, toPath)
	}
	if from == nil {
		from, fromPath = c.here, source
	}
	src, err := c.source(ctx, from, fromPath)
	if err != nil {
		return err
	}
	if target == "-" {
		stream, err := src.stream(ctx, src.base)
		if err != nil {
			return err
		}
		out := stream.tar()
		defer out.Close()
		_, err = io.Copy(c.out, out)
		return err
	}
	if to == nil {
		to, toPath = c.here, target
	}
	return src.copyTo(ctx, to, toPath)
}

// locate returns the location of arg, nil for this machine, and the path in it.
func (c *copying) locate(arg string) (location, string) {
	ref, file, ok := remote(arg)
	if !ok {
		return nil, ""
	}
	return c.open(ref), "/" + file
}

// unpack unpacks standard input.
func (c *copying) unpack(ctx context.Context, to location, name string) error {
	dir, found, err := followLinks(ctx, to, name)
	switch {
	case err != nil:
		return err
	case found == nil:
		return noDirectory(to, dir)
	case found.Kind != "directory":
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: is a %s; a tar stream needs a directory", to.show(name),
			found.Kind), "name a directory as TARGET")
	}
	return to.in(ctx, dir, archive{ReadCloser: io.NopCloser(c.in)})
}

// origin is the resolved SOURCE.
type origin struct {
	location
	name     string // with links followed
	given    string
	base     string // name of the copy in a directory, "" to copy only the files of SOURCE
	contents bool   // of "directory/."
	file     api.File
}

// source resolves SOURCE.
func (c *copying) source(ctx context.Context, p location, name string) (*origin, error) {
	o := &origin{location: p, name: name, given: name, base: path.Base(name)}
	o.contents = o.base == "." || path.Clean(name) == "/"
	slash := strings.HasSuffix(name, "/") || o.contents
	if o.base == ".." {
		abs, err := filepath.Abs(name)
		if err != nil {
			return nil, errors.Wrapf(err, "find %s", name)
		}
		o.base = filepath.Base(abs)
	}
	if o.contents {
		o.base = ""
	}
	var found *api.File
	var err error
	if c.follow || slash {
		o.name, found, err = followLinks(ctx, p, name)
	} else {
		found, err = exists(ctx, p, name)
	}
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, errors.Remedy(errors.Newf(errors.NotFound, "%s: no such file or directory", p.show(name)),
			"check SOURCE; a path that is not on this machine is %s:PATH", c.noun)
	case slash && found.Kind != "directory":
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "%s: not a directory", p.show(name)),
			"to copy the file, name %s", p.show(path.Clean(name)))
	case found.Kind == "other" && o.base != "":
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "%s: not a file, directory or link", p.show(name)),
			"copy its contents with a command")
	}
	o.file = *found
	return o, nil
}

// exists is lstat, with nil for a file that does not exist.
func exists(ctx context.Context, p location, name string) (*api.File, error) {
	f, err := p.lstat(ctx, name)
	if errors.KindOf(err) == errors.NotFound && noPlace(err) == nil {
		return nil, nil
	}
	return &f, err
}

// maxLinks is the most links in one path, as in Linux.
const maxLinks = 40

// followLinks follows name if it is a link. found is nil if the target does not exist.
func followLinks(ctx context.Context, p location, name string) (real string, found *api.File, err error) {
	real = strings.TrimRight(name, "/")
	if strings.HasSuffix(real, "/.") {
		real = strings.TrimRight(strings.TrimSuffix(real, "."), "/")
	}
	real = cmp.Or(real, "/")
	for range maxLinks {
		found, err := exists(ctx, p, real)
		if err != nil || found == nil || found.Kind != "symlink" {
			return real, found, err
		}
		if path.IsAbs(found.Link) {
			real = found.Link
		} else {
			real = path.Dir(real) + "/" + found.Link
		}
	}
	return "", nil, errors.Remedy(errors.Newf(errors.Invalid, "%s: too many symbolic links", p.show(name)),
		"name the file itself")
}

func noDirectory(p location, dir string) error {
	err := errors.Newf(errors.NotFound, "%s: no such directory", p.show(dir))
	if how := p.mkdir(dir); how != "" {
		return errors.Remedy(err, "create it first: %s", how)
	}
	return errors.Remedy(err, "copy a directory to %s first, which creates it", p.show(dir))
}

// copyTo copies to a path of another location, or of the same one.
func (o *origin) copyTo(ctx context.Context, to location, name string) error {
	isDir := o.file.Kind == "directory"
	slash := strings.HasSuffix(name, "/") || path.Base(name) == "."
	real, found, err := followLinks(ctx, to, name)
	switch {
	case err != nil:
		return err
	case found == nil && slash && !isDir:
		return noDirectory(to, real)
	case found == nil:
		parent, above, err := followLinks(ctx, to, path.Dir(real))
		if err != nil {
			return err
		}
		if above == nil {
			return noDirectory(to, parent)
		}
		return o.send(ctx, to, parent, path.Base(real))
	case found.Kind == "directory":
		return o.send(ctx, to, real, o.base)
	case isDir:
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: not a directory, but %s is one", to.show(name),
			o.show(o.given)), "name a directory as TARGET, or a path that does not exist")
	case slash:
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: not a directory", to.show(name)),
			"to replace the file, name %s", to.show(path.Clean(name)))
	}
	return o.send(ctx, to, path.Dir(real), path.Base(real))
}

// send copies into a directory, under a name. Without a name, it adds the files of a directory to the existing
// ones.
func (o *origin) send(ctx context.Context, to location, dir, name string) error {
	target, self := to.show(path.Join(dir, name)), o.show(o.name)
	if o.file.Kind == "directory" && (target == self || strings.HasPrefix(target, strings.TrimRight(self, "/")+"/")) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: cannot be copied into itself", self),
			"name a TARGET outside of SOURCE")
	}
	stream, err := o.stream(ctx, name)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err = to.in(ctx, dir, stream); err == nil {
		return nil
	}
	at, _ := to.lstat(ctx, path.Join(dir, name)) // best effort: err names only the end of the path
	if (at.Kind == "directory") != (o.file.Kind == "directory") && (at.Kind == "directory" || at.Kind == "file") {
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: is a %s, but %s is a %s", target, at.Kind,
			o.show(o.given), o.file.Kind), "remove %s first, or name another TARGET", target)
	}
	return err
}

// stream returns a tar stream of the file or directory under a name. Without a name, it has the files of the
// directory. The caller closes it.
func (o *origin) stream(ctx context.Context, name string) (archive, error) {
	return o.out(ctx, o.name, o.naming(name))
}

// naming returns the changes that give the copy a name.
func (o *origin) naming(name string) tarfs.Naming {
	switch {
	case name == "":
		return tarfs.Naming{}
	case o.file.Kind != "directory":
		return tarfs.Naming{Change: func(hdr *tar.Header) { hdr.Name = name }}
	}
	top := &tar.Header{
		Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(o.file.Mode & 0o7777), ModTime: o.file.Modified,
		Uid: o.file.UID, Gid: o.file.GID, Format: tar.FormatPAX,
	}
	return tarfs.Naming{First: top, Change: func(hdr *tar.Header) {
		slash := strings.HasSuffix(hdr.Name, "/")
		if hdr.Name = path.Join(name, hdr.Name); slash {
			hdr.Name += "/"
		}
		if hdr.Typeflag == tar.TypeLink {
			hdr.Linkname = path.Join(name, hdr.Linkname)
		}
	}}
}

// archive is a tar stream whose headers are still to be changed.
type archive struct {
	io.ReadCloser
	naming tarfs.Naming
}

// tar returns the stream with the changed headers. The caller closes it, which closes the archive.
func (a archive) tar() io.ReadCloser {
	if a.naming.Empty() {
		return a.ReadCloser
	}
	return rewrite(a.ReadCloser, a.naming)
}

// rewriting is a stream derived from another one.
type rewriting struct {
	*io.PipeReader
	from io.Closer
	done chan struct{}
}

func (r *rewriting) Close() error {
	_ = r.PipeReader.Close() // always nil
	err := r.from.Close()
	<-r.done
	return err
}

// rewrite returns a tar stream with changed headers. The caller closes it, which closes stream.
func rewrite(stream io.ReadCloser, as tarfs.Naming) io.ReadCloser {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffered := bufio.NewWriterSize(w, 64<<10) // each write to w waits for its reader
		in, out := tarfs.NewReader(stream), tar.NewWriter(buffered)
		var err error
		if as.First != nil {
			err = out.WriteHeader(as.First)
		}
		for err == nil {
			var hdr *tar.Header
			if hdr, err = in.Next(); err != nil {
				break
			}
			as.Change(hdr)
			if err = out.WriteHeader(hdr); err == nil {
				_, err = io.Copy(out, in)
			}
		}
		if err == io.EOF {
			if err = out.Close(); err == nil {
				err = buffered.Flush()
			}
		}
		w.CloseWithError(err)
	}()
	return &rewriting{r, stream, done}
}

// here is the file system of this machine.
type here struct {
	skipped func(name string) // called for FIFOs and devices, which are then not created; nil creates FIFOs
}

func (here) show(name string) string { return name }
func (here) mkdir(dir string) string { return "mkdir -p " + dir }

func (here) lstat(_ context.Context, name string) (api.File, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return api.File{}, tarfs.Explain(err, name)
	}
	return described(name, info), nil
}

func (here) out(ctx context.Context, name string, as tarfs.Naming) (archive, error) {
	dir, base := filepath.Dir(name), filepath.Base(name)
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		if link, err := os.Lstat(name); err == nil && link.IsDir() {
			dir, base = name, "."
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return archive{}, tarfs.Explain(err, dir)
	}
	defer root.Close()
	stream, err := tarfs.OpenAs(ctx, root, base, as)
	return archive{ReadCloser: stream}, err
}

func (h here) in(_ context.Context, dir string, from archive) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return tarfs.Explain(err, dir)
	}
	defer root.Close()
	return tarfs.Unpack(root, ".", from, tarfs.Options{Naming: from.naming, Skipped: h.skipped})
}
