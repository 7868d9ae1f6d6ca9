package image

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// flight is a build in progress with its waiters.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when img and err are set and the build has cleaned up
	img    Image
	err    error

	mu      sync.Mutex
	waiters map[*waiter]struct{} // guarded by mu
	lines   []string             // guarded by mu; last lines of the log, for late waiters
	last    *Progress            // guarded by mu; for late waiters
}

type waiter struct {
	progress func(Progress)
	log      func(string)
}

// keptLines is the number of log lines for a late waiter.
const keptLines = 1000

// join adds a waiter. It returns nil if the build is being canceled.
func (f *flight) join(progress func(Progress), log func(string)) *waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiters == nil {
		return nil
	}
	w := &waiter{progress, log}
	f.waiters[w] = struct{}{}
	if progress != nil && f.last != nil {
		progress(*f.last)
	}
	if log != nil {
		for _, line := range f.lines {
			log(line)
		}
	}
	return w
}

// leave removes a waiter and stops its reports. If it was the last one, leave cancels the build and
// returns true.
func (f *flight) leave(w *waiter) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiters, w)
	if len(f.waiters) > 0 {
		return false
	}
	f.waiters = nil
	f.cancel()
	return true
}

func (f *flight) report(p Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = &p
	for w := range f.waiters {
		if w.progress != nil {
			w.progress(p)
		}
	}
}

func (f *flight) say(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lines) == keptLines {
		f.lines = append(f.lines[:0], f.lines[1:]...)
	}
	f.lines = append(f.lines, line)
	for w := range f.waiters {
		if w.log != nil {
			w.log(line)
		}
	}
}

// Build implements Builder.
func (l *Library) Build(ctx context.Context, spec Spec, opts BuildOptions) (Image, error) {
	names, err := l.checkNames(opts.Names)
	if err != nil {
		return Image{}, err
	}
	for i := range names {
		names[i] = stored(spec.Owner, names[i])
	}
	source, img, err := l.choose(ctx, spec, opts)
	if err != nil {
		return Image{}, err
	}
	if source == nil {
		l.touch(ctx, img)
		return l.named(img, names)
	}
	resolved, fingerprint, err := source.Resolve(ctx, spec, opts)
	if err != nil {
		return Image{}, errors.Stage(err, "image: prepare")
	}
	digest, err := resolved.Digest(fingerprint)
	if err != nil {
		return Image{}, err
	}
	img, err = l.wait(ctx, source, resolved, digest, opts)
	if err != nil {
		return Image{}, err
	}
	if source != l.sources.Dockerfile && !opts.Foreign {
		names = append(names, stored(spec.Owner, spec.Base))
	}
	return l.named(img, names)
}

// choose returns the source for an image of that spec, or the image itself if the library has it
// under that name.
func (l *Library) choose(ctx context.Context, spec Spec, opts BuildOptions) (Source, Image, error) {
	var source Source
	switch own := l.sources.Named[spec.Base]; {
	case spec.Dockerfile != "" || len(spec.Commands) > 0:
		source = l.sources.Dockerfile
	case own != nil && opts.Foreign:
		err := errors.Newf(errors.Unsupported, "the image %s is for this machine's platform, not for %s", spec.Base,
			spec.Platform)
		return nil, Image{}, errors.Remedy(err, "leave the platform out")
	case own != nil:
		source = own
	case spec.Base == "":
		return nil, Image{}, errors.Remedy(errors.Newf(errors.Invalid, "the image has no base"), "%s", l.bases())
	default:
		img, err := Of(l, spec.Owner).Find(ctx, spec.Base)
		isID := strings.HasPrefix(spec.Base, idPrefix) || strings.HasPrefix(spec.Base, digestPrefix)
		pull := opts.Force || opts.Pull == PullAlways
		if err == nil && opts.Foreign && img.Spec.Platform != spec.Platform {
			if isID || !l.pulled(img) {
				return nil, Image{}, errors.Remedy(errors.Newf(errors.Unsupported, "the image %s is for %s, not for %s",
					spec.Base, cmp.Or(img.Spec.Platform, "this machine's platform"), spec.Platform),
					"leave the platform out, or name an image for it")
			}
			pull = true
		}
		if isID || err == nil && (!pull || !l.pulled(img)) || err != nil && errors.KindOf(err) != errors.NotFound {
			return nil, img, err
		}
		source = l.sources.Registry
	}
	if source == nil {
		err := errors.Newf(errors.NotFound, "there is no way to build an image %.100q", spec.Base)
		return nil, Image{}, errors.Remedy(err, "%s", l.bases())
	}
	return source, Image{}, nil
}

// pulled reports whether the image is an unchanged image of a registry, which can be asked for a
// newer one.
func (l *Library) pulled(img Image) bool {
	s := img.Spec
	return s.Base != "" && s.Dockerfile == "" && len(s.Commands) == 0 && s.Parent == "" &&
		l.sources.Named[s.Base] == nil
}

// wait returns the image of that digest, from a new build or one in progress.
func (l *Library) wait(ctx context.Context, source Source, spec Spec, digest string, opts BuildOptions) (Image, error) {
	for {
		if !opts.Force {
			if img, err := l.read(hexOf(digest)); err == nil {
				l.touch(ctx, img)
				return img, nil
			}
		}
		f := l.flight(ctx, source, spec, digest, opts)
		w := f.join(opts.Progress, opts.Log)
		if w == nil { // canceled just now: wait for its end, and build again
			select {
			case <-f.done:
				continue
			case <-ctx.Done():
				return Image{}, context.Cause(ctx)
			}
		}
		select {
		case <-f.done:
			f.leave(w)
			return f.img, f.err
		case <-ctx.Done():
			if f.leave(w) {
				<-f.done // leave nothing behind on return
			}
			return Image{}, errors.Stage(context.Cause(ctx), "image: build")
		}
	}
}

// flight returns the build of that digest, and starts it if there is none.
func (l *Library) flight(ctx context.Context, source Source, spec Spec, digest string, opts BuildOptions) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.flights[digest]; f != nil {
		return f
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, done: make(chan struct{}), waiters: map[*waiter]struct{}{}}
	l.flights[digest] = f
	go func() {
		defer cancel()
		opts.Progress, opts.Log = f.report, f.say
		f.img, f.err = l.build(ctx, source, spec, digest, opts)
		f.err = errors.Stage(f.err, "image: build")
		l.mu.Lock()
		delete(l.flights, digest)
		l.mu.Unlock()
		close(f.done)
	}()
	return f
}

// build builds an image, or returns the one that another process has built while this one waited.
func (l *Library) build(ctx context.Context, source Source, spec Spec, digest string,
	opts BuildOptions) (img Image, err error) {
	digits := hexOf(digest)
	lock, err := waitLock(ctx, l.path(lockDir, digits), func() {
		opts.Progress(Progress{Step: "wait", Done: -1, Message: "another process is building this image"})
	})
	if err != nil {
		return Image{}, errors.Wrapf(err, "lock the build")
	}
	defer lock.Close()
	if !opts.Force {
		if img, err := l.read(digits); err == nil {
			return img, nil
		}
	}
	temp := newPrefix + digits
	if err := os.RemoveAll(l.path(temp)); err != nil { // left by a process that died
		return Image{}, errors.Wrapf(err, "clear an earlier build")
	}
	if err := os.Mkdir(l.path(temp), 0o700); err != nil {
		return Image{}, tarfs.Explain(err, temp)
	}
	defer func() {
		if e := os.RemoveAll(l.path(temp)); e != nil && err == nil {
			err = errors.Wrapf(e, "clear the build")
		}
	}()
	start := time.Now()
	img = Image{ID: idOf(digest), Digest: digest, Names: []string{}, Spec: spec}
	if err := l.fill(ctx, source, temp, &img, opts); err != nil {
		return Image{}, err
	}
	fault.Point("image.filled")
	img.Built, img.BuildTime = time.Now().UTC(), time.Since(start)
	if err := l.describe(temp, img); err != nil {
		return Image{}, tarfs.Explain(err, manifestFile)
	}
	if err := l.publish(temp, digits); err != nil {
		return Image{}, errors.Wrapf(err, "publish image %s", img.ID)
	}
	logf.Infof(ctx, "image %s (%.100s) built in %v, %d bytes", img.ID, spec.Base,
		img.BuildTime.Round(time.Millisecond), img.Size)
	return img, nil
}

// fill makes the source write the root file system.
func (l *Library) fill(ctx context.Context, source Source, temp string, img *Image, opts BuildOptions) (err error) {
	own := l.path(temp, "source")
	if err := os.Mkdir(own, 0o700); err != nil {
		return tarfs.Explain(err, temp)
	}
	root, err := os.OpenFile(l.path(temp, rootFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return tarfs.Explain(err, rootFile)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	contents, err := source.Build(ctx, img.Spec, opts, Output{Root: root, Temp: own})
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if contents.Root != "" {
		if err := os.Rename(contents.Root, root.Name()); err != nil {
			return errors.Wrapf(err, "share a root file system")
		}
	}
	info, err := os.Stat(root.Name())
	if err != nil {
		return errors.Wrapf(err, "measure the image")
	}
	img.Config, img.Parts, img.Missing, img.Size = contents.Config, contents.Parts, contents.Missing, info.Size()
	return errors.Wrapf(errors.Join(root.Sync(), os.RemoveAll(own)), "finish the image")
}

// describe writes the manifest, which is the last file of a build.
func (l *Library) describe(temp string, img Image) error {
	text, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.path(temp, manifestFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Sync(), f.Close(), atomicfile.SyncDir(l.path(temp)))
}

// publish renames a finished build to its final name. An existing image is exchanged atomically, so
// that the name always has an image.
func (l *Library) publish(temp, digits string) error {
	from, to := l.path(temp), l.path(digits)
	err := os.Rename(from, to)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		err = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	}
	return errors.Join(err, atomicfile.SyncDir(l.dir))
}
